"""One request's way past the breakers, leases and limits of its model's sites."""

import time
from collections.abc import Callable, Sequence

import msgspec

from gateway.admission import Ask, Capacity, Grant, Kind, Priority
from gateway.fleet.registry import Deployment
from gateway.guard.refusals import error_of, is_final
from gateway.guard.site_guard import SiteGuard
from gateway.guard.ticket import Ticket
from gateway.ratelimit import Charge, headers
from gateway.relay.causes import AttemptFailed, Cause
from gateway.site.trip_budget import TripBudget
from gateway.telemetry.metrics import Metrics


class Applicant(msgspec.Struct, frozen=True):
    """What of a request matters at the gate."""

    tenant: str
    kind: Kind
    priority: Priority
    charges: tuple[Charge, ...]
    uncached_tokens: Callable[[str], int]
    """By deployment: a session is cheap where it was before."""


class Gate:
    def __init__(
        self,
        applicant: Applicant,
        guard_of: Callable[[str], SiteGuard],
        capacity_of: Callable[[str], Capacity],
        peers: Sequence[str],
        first_event_s: float,
        metrics: Metrics,
    ) -> None:
        """`first_event_s` is the time of a first event for a prompt of no length."""
        self._applicant = applicant
        self._guard_of = guard_of
        self._capacity_of = capacity_of
        self._peers = peers
        self._first_event_s = first_event_s
        self._metrics = metrics
        self._budget = TripBudget(time.monotonic())
        self._charged_at: SiteGuard | None = None
        self._settled = False
        self._last: SiteGuard | None = None

    async def enter(self, deployment: Deployment, patience_s: float) -> Ticket:
        """Raises AttemptFailed(CLOSED_OFF or FULL) where another deployment may do better, an ApiError where none can.
        Cancelled, it owns nothing."""
        guard = self._last = self._guard_of(deployment.site)
        permit = guard.breakers.permit(deployment.name, self._peers)
        self._metrics.verdicts.labels(deployment.name, permit.verdict.value).inc()
        if not permit.allowed:
            raise AttemptFailed(Cause.CLOSED_OFF, f"the breaker is {permit.verdict.value}")
        tokens = self._applicant.uncached_tokens(deployment.name)
        answer = await guard.admission.acquire(
            Ask(
                deployment.name,
                self._capacity_of(deployment.name),
                self._applicant.tenant,
                tokens,
                self._applicant.kind,
                self._applicant.priority,
                patience_s,
                self._budget,
                self._applicant.charges if self._charged_at is None else (),
            )
        )
        if not isinstance(answer, Grant):
            error = error_of(answer)
            if is_final(answer):
                raise error
            raise AttemptFailed(Cause.FULL, error.message, error)
        self._charged_at = self._charged_at or guard
        prefill_s = tokens / deployment.prefill_tokens_per_second
        return Ticket(
            guard,
            permit,
            answer,
            entered_at=time.monotonic(),
            prefill_s=prefill_s,
            first_event_s=self._first_event_s + prefill_s,
            token_s=1 / deployment.decode_tokens_per_second,
            tell=self._closed,
        )

    def settle(self, tokens: int | None) -> None:
        """Once a request: what it used, prompt and answer; None when nobody knows, and the estimate stands."""
        if self._settled:
            return
        self._settled = True
        if self._charged_at is not None and tokens is not None:
            self._charged_at.admission.limits.settle(self._applicant.charges, tokens)

    def headers(self) -> dict[str, str]:
        """x-ratelimit-*, as far as the key has limits."""
        guard = self._charged_at or self._last
        if guard is None or not self._applicant.charges:
            return {}
        return headers(guard.admission.limits.views(self._applicant.charges, time.monotonic()))

    def _closed(self, deployment: str, ending: str) -> None:
        self._metrics.endings.labels(deployment, str(ending)).inc()
