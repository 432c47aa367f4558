"""What the process holds while it serves: built by `app.lifespan`, handed to every endpoint."""

import asyncio
from dataclasses import dataclass, field

from starlette.requests import Request

from gateway.accounts.keys import Caller, KeyRing
from gateway.errors import NotFound, Unauthenticated
from gateway.fleet.registry import Fleet, Model
from gateway.metering.settle import Settlement, SettleRecord
from gateway.metering.settle_store import SettleStream
from gateway.relay.upstream import Upstream
from gateway.settings import GatewaySettings
from gateway.telemetry.metrics import Metrics
from gateway.toolcalls.desk import ToolDesk


@dataclass
class GatewayState:
    settings: GatewaySettings
    fleet: Fleet
    keys: KeyRing
    metrics: Metrics
    upstream: Upstream
    settle_stream: SettleStream | None
    tools: ToolDesk
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at SIGTERM: no new requests, not ready."""
    deadline_passed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when draining has taken too long: running streams end with an error event."""
    settlements: int = 0
    """Requests being answered now."""

    @property
    def secret(self) -> bytes:
        return self.settings.secret.get_secret_value().encode()

    def settlement(self, endpoint: str, request_id: str) -> Settlement:
        self.settlements += 1
        return Settlement(endpoint, request_id, self.metrics, self._keep)

    def _keep(self, record: SettleRecord) -> None:
        self.settlements -= 1
        # A request without a tenant used nothing; writing it down would let strangers push out records that count.
        if self.settle_stream is not None and record.tenant:
            self.settle_stream.keep(record)

    def caller(self, request: Request) -> Caller:
        """Who is calling. Raises Unauthenticated."""
        header = request.headers.get("authorization", "")
        scheme, _, key = header.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthenticated("No API key: send it as `Authorization: Bearer sk-...`.")
        caller = self.keys.caller_of(key.strip())
        if caller is None:
            raise Unauthenticated("This API key is not known.")
        return caller

    def model(self, name: str) -> Model:
        """Raises NotFound."""
        model = self.fleet.models.get(name)
        if model is None:
            raise NotFound(
                f"The model `{name[:200]}` does not exist or you have no access to it.",
                param="model",
                code="model_not_found",
            )
        return model


def state_of(request: Request) -> GatewayState:
    state: GatewayState = request.app.state.gateway
    return state
