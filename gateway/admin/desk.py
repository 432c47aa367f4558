"""The admin API's shell: gathers what is shown, carries out what is ordered, and writes down who did what."""

import asyncio
import logging
import time
from collections import deque
from typing import Any

from gateway.accounts.keys import Caller
from gateway.admin import view
from gateway.admin.actions import Action, DeploymentOrder, Probe, Result, SiteOrder, check, ordered, target_of
from gateway.admin.frontends import FrontendPage, ask_all
from gateway.admin.leases import SiteLeases, leases_of
from gateway.admin.window import Labels, Window
from gateway.breaker import Ending, State
from gateway.errors import ApiError, NotFound, Unavailable
from gateway.fleet.orders import Heard
from gateway.fleet.orders_store import OrdersUnreadable
from gateway.guard.site_guard import SiteGuard
from gateway.site import SiteUnavailable
from gateway.state import GatewayState

logger = logging.getLogger("gateway.admin")

SHOWN = (
    "prime_gateway_requests_total",
    "prime_gateway_attempts_total",
    "prime_gateway_tokens_total",
    "prime_gateway_first_event_seconds_bucket",
    "prime_gateway_tool_calls_total",
    "prime_gateway_tool_faults_total",
)
"""Samples of this replica's metrics that the window keeps."""

GATHER_EVERY_S = 1.0
"""However many people look, and however fast their pages ask."""

ORDER_WITHIN_S = 3.0
ORDER_AGAIN_S = 0.1
"""A person waits gladly this long rather than press again: a starved machine, a failover that is nearly over, another
person's order at the same moment."""

KEPT_ACTIONS = 50
PROBE_TIMEOUT_S = 10.0


class AdminDesk:
    def __init__(self, state: GatewayState) -> None:
        self._state = state
        self._window = Window()
        self._pages: dict[str, FrontendPage] = {}
        self._leases: dict[str, SiteLeases | None] = {}
        self._gathered_at = float("-inf")
        self._gathering = asyncio.Lock()
        self._started = time.time()
        self._log: deque[dict[str, Any]] = deque(maxlen=KEPT_ACTIONS)

    # ── what is shown ──

    async def overview(self) -> dict[str, Any]:
        async with self._gathering:
            if time.monotonic() - self._gathered_at >= GATHER_EVERY_S:
                await self._gather()
        state, fleet = self._state, self._state.snapshot.fleet
        return {
            "at": time.time(),
            "window_s": self._window.seconds,
            "replica": {
                "started_at": self._started,
                "in_flight": state.settlements,
                "draining": state.draining.is_set(),
                "files_refused": bool(state.metrics.registry.get_sample_value("prime_gateway_files_refused")),
            },
            "models": [view.model_view(model, self._window) for model in fleet.models.values()],
            "deployments": [self._deployment(name) for name in fleet.deployments],
            "sites": [self._site(name) for name in view.sites_of(fleet)],
            "actions": list(reversed(self._log)),
        }

    async def _gather(self) -> None:
        fleet, guards = self._state.snapshot.fleet, self._state.guards.all()
        urls = sorted({url for deployment in fleet.deployments.values() for url in deployment.frontends})
        asking = asyncio.gather(*(_leases(guard) for guard in guards))
        self._pages, held = await asyncio.gather(ask_all(urls), asking)
        self._leases = dict(zip((guard.name for guard in guards), held, strict=True))
        values = self._own_values()
        for deployment in fleet.deployments.values():
            for url in deployment.frontends:
                for (name, labels), value in self._pages[url].values.items():
                    values[name, (*labels, ("deployment", deployment.name), ("frontend", url))] = value
        self._gathered_at = time.monotonic()
        self._window.add(self._gathered_at, values)

    def _own_values(self) -> dict[tuple[str, Labels], float]:
        registry = self._state.metrics.registry.restricted_registry(SHOWN)
        return {
            (sample.name, tuple(sample.labels.items())): sample.value
            for metric in registry.collect()
            for sample in metric.samples
        }

    def _deployment(self, name: str) -> dict[str, Any]:
        fleet, written = self._state.snapshot.fleet, self._state.written.fleet
        deployment = fleet.deployments[name]
        guard = self._state.guards.of(deployment.site)
        held = guard.admission.in_use(name)
        here = view.Here(
            guard.breakers.board.aged(name, time.monotonic()),
            held.requests,
            held.tokens,
            guard.admission.waiting(name),
            guard.admission.is_scarce(name),
        )
        return view.deployment_view(
            deployment,
            written.deployments[name],
            self._state.orders.heard.get(deployment.site, Heard()),
            here,
            self._leases.get(deployment.site),
            self._pages,
            self._window,
        )

    def _site(self, name: str) -> dict[str, Any]:
        guard = self._state.guards.of(name)
        leases = self._leases.get(name)
        orders = self._state.orders.heard.get(name, Heard()).orders
        return {
            "name": name,
            "valkey": "none" if guard.valkey is None else guard.valkey.link.state.value,
            "alone": guard.admission.alone,
            "replicas": guard.admission.replicas,
            "settling": guard.admission.settling,
            "leases_lost": guard.admission.leases_lost,
            "leases": None
            if leases is None
            else [{"epoch": each.epoch, "left_s": each.left_ms / 1000} for each in leases.leases],
            "draining": orders.draining,
            "revision": orders.revision,
        }

    # ── what is ordered ──

    async def act(self, action: Action, caller: Caller, request_id: str) -> dict[str, Any]:
        """Raises NotFound, Conflict and Unavailable. Whatever comes of it is written down."""
        try:
            done = await (self._probe(action) if isinstance(action, Probe) else self._order(action))
        except ApiError as error:
            result = Result.REFUSED if error.status < 500 else Result.FAILED
            self._note(action, caller, request_id, result, error.message)
            raise
        self._note(action, caller, request_id, Result.DONE, str(done["detail"]))
        return done

    async def _order(self, action: DeploymentOrder | SiteOrder) -> dict[str, Any]:
        site = self._site_of(action)
        give_up, last = time.monotonic() + ORDER_WITHIN_S, "Others are ordering at the same moment."
        while True:
            try:
                heard = await self._try_order(action, site)
                if heard is not None:
                    return {"result": Result.DONE.value, "site": site, "detail": f"revision {heard.orders.revision}"}
            except SiteUnavailable:
                last = "Its Valkey does not answer. The fleet file can still drain a deployment."
            except OrdersUnreadable as error:
                raise Unavailable(str(error)) from error
            if time.monotonic() > give_up:
                raise Unavailable(f"No order could be left at site {site}. {last}")
            await asyncio.sleep(ORDER_AGAIN_S)

    async def _try_order(self, action: DeploymentOrder | SiteOrder, site: str) -> Heard | None:
        """None if another change came first. A trip that brought no answer may have changed the site all the same; the
        next one meets that, and orders the same again."""
        orders = self._state.orders
        await orders.look()
        before = orders.heard.get(site, Heard())
        fleet, written = self._state.snapshot.fleet, self._state.written.fleet
        now = None if isinstance(action, SiteOrder) else fleet.deployments[action.deployment]
        wanted = ordered(action, before, now)
        check(action, written, orders.heard, {**orders.heard, site: Heard(wanted, before.now_ms)})
        return await orders.change(site, wanted)

    async def _probe(self, action: Probe) -> dict[str, Any]:
        guard = self._state.guards.of(self._site_of(action))
        name = action.deployment
        if guard.breakers.board.states([name])[name] is not State.CLOSED:
            hastened = await guard.breakers.hasten(name)
            return {
                "result": Result.DONE.value,
                "detail": "the probe is due now" if hastened else "its probe is due or under way already",
            }
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                ending = await self._state.guards.probe(name)
        except TimeoutError:
            ending = Ending.FIRST_EVENT_TIMEOUT
        return {"result": Result.DONE.value, "detail": f"probe: {ending.value}"}

    def _site_of(self, action: Action) -> str:
        """Raises NotFound."""
        fleet, target = self._state.snapshot.fleet, target_of(action)
        if isinstance(action, SiteOrder):
            if target not in view.sites_of(fleet):
                raise NotFound(f"There is no site {target}.", code="unknown_site")
            return target
        if target not in fleet.deployments:
            raise NotFound(f"There is no deployment {target}.", code="unknown_deployment")
        return fleet.deployments[target].site

    def _note(self, action: Action, caller: Caller, request_id: str, result: Result, detail: str) -> None:
        said = action.model_dump(exclude_defaults=True)
        entry = {
            "at": time.time(),
            **{"action": said.pop("action"), "target": target_of(action), "key_name": caller.key_name},
            **{"result": result.value, "detail": detail},
            "arguments": {name: value for name, value in said.items() if name not in ("deployment", "site")},
        }
        self._log.append(entry)
        logger.warning("admin action", extra={**entry, "tenant": caller.tenant, "request_id": request_id})


async def _leases(guard: SiteGuard) -> SiteLeases | None:
    """Without a Valkey this replica is all there is."""
    names = list(guard.deployments())
    if guard.valkey is not None:
        return await leases_of(guard.valkey, names)
    return SiteLeases((), {name: {"": guard.admission.in_use(name)} for name in names})
