"""What the process holds while it serves: built by `app.lifespan`, handed to every endpoint."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from starlette.requests import Request

from gateway.accounts.keys import Caller, Scope
from gateway.api.presence import Shutdown
from gateway.errors import NotFound, PermissionDenied, Unauthenticated
from gateway.fleet.orders import Heard, obeyed
from gateway.fleet.orders_watch import OrdersWatch
from gateway.fleet.registry import Model
from gateway.fleet.snapshot import Snapshot
from gateway.guard.gate import Applicant, Gate
from gateway.guard.guards import Guards
from gateway.metering.settle import Settlement, SettleRecord
from gateway.metering.settle_store import SettleStream
from gateway.relay.sessions import Sessions
from gateway.relay.upstream import Upstream
from gateway.settings import GatewaySettings
from gateway.telemetry.metrics import Metrics
from gateway.toolcalls.desk import ToolDesk

if TYPE_CHECKING:
    from gateway.telemetry.spans import Tracing


@dataclass
class GatewayState:
    settings: GatewaySettings
    snapshot: Snapshot
    """The present one; a request reads it once and keeps it."""
    metrics: Metrics
    upstream: Upstream
    guards: Guards
    settle_stream: SettleStream | None
    tools: ToolDesk
    sessions: Sessions = field(default_factory=Sessions)
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at SIGTERM: no new requests, not ready."""
    shutdown: Shutdown = field(default_factory=Shutdown)
    """Comes when draining has taken too long: running streams end with an error event."""
    tracing: "Tracing | None" = None
    settlements: int = 0
    """Requests being answered now."""

    def __post_init__(self) -> None:
        self.written = self.snapshot
        """As the files have it; `snapshot` also obeys the operators' orders."""
        self._heard: Mapping[str, Heard] = {}
        self.orders = OrdersWatch(lambda: [(guard.name, guard.valkey) for guard in self.guards.all()], self.obey)

    @cached_property
    def secret(self) -> bytes:
        return self.settings.secret.get_secret_value().encode()

    async def take(self, snapshot: Snapshot) -> None:
        """A new snapshot rules for every request that comes from now on."""
        await self.guards.follow(snapshot)
        self.tools.follow(snapshot.fleet)
        self.written = snapshot
        self.obey(self._heard)

    def obey(self, heard: Mapping[str, Heard]) -> None:
        """Operators' orders, by site, rule over the files from now on."""
        self._heard = heard
        fleet = obeyed(self.written.fleet, heard)
        self.snapshot = self.written if fleet is self.written.fleet else replace(self.written, fleet=fleet)

    def settlement(self, endpoint: str, request_id: str) -> Settlement:
        self.settlements += 1
        return Settlement(endpoint, request_id, self.metrics, self._keep)

    def _keep(self, record: SettleRecord) -> None:
        self.settlements -= 1
        # A request without a tenant used nothing; writing it down would let strangers push out records that count.
        if self.settle_stream is not None and record.tenant:
            self.settle_stream.keep(record)

    def gate(self, applicant: Applicant, snapshot: Snapshot, model: Model) -> Gate:
        return Gate(
            applicant,
            self.guards.of,
            snapshot.capacities.__getitem__,
            [deployment.name for deployment in model.deployments if not deployment.draining],
            self.settings.first_event_timeout_seconds,
            self.metrics,
        )

    def caller(self, request: Request, scope: Scope = Scope.INFERENCE) -> Caller:
        """Who is calling. Raises Unauthenticated, and PermissionDenied for a key without the scope."""
        header = request.headers.get("authorization", "")
        scheme, _, key = header.partition(" ")
        if not header:
            # Anthropic's SDKs send the key by itself.
            scheme, key = "bearer", request.headers.get("x-api-key", "")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthenticated("No API key: send it as `Authorization: Bearer sk-...`.")
        caller = self.snapshot.keys.caller_of(key.strip())
        if caller is None:
            raise Unauthenticated("This API key is not known.")
        if scope not in caller.scopes:
            raise PermissionDenied(f"This API key lacks the scope `{scope.value}`.")
        return caller

    def model(self, name: str, caller: Caller) -> Model:
        """Raises NotFound, also for a model that the key may not use: which models exist is not its business."""
        model = self.snapshot.fleet.models.get(name)
        if model is None or not caller.may_use(name):
            raise NotFound(
                f"The model `{name[:200]}` does not exist or you have no access to it.",
                param="model",
                code="model_not_found",
            )
        return model


def state_of(request: Request) -> GatewayState:
    state: GatewayState = request.app.state.gateway
    return state
