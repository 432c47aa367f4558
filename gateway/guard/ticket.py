"""What an attempt holds while it runs: the breaker's permit and a part of the deployment's capacity."""

from collections.abc import Callable

from gateway.admission import Grant
from gateway.breaker import Ending, Permit
from gateway.guard.site_guard import SiteGuard

LEFT_WAITING_S = 5.0
"""A client that left after its prefill's time and this long again without having heard anything may have had cause."""

Closed = Callable[[str, Ending], None]
"""Told the deployment and the ending of each attempt."""


class Ticket:
    """Closed by the first `close`; never waits, so it is safe in any `finally`."""

    __slots__ = (
        "_closed",
        "_entered_at",
        "_grant",
        "_guard",
        "_permit",
        "_prefill_s",
        "_tell",
        "first_event_s",
        "token_s",
    )

    def __init__(
        self,
        guard: SiteGuard,
        permit: Permit,
        grant: Grant,
        *,
        entered_at: float,
        prefill_s: float,
        first_event_s: float,
        token_s: float,
        tell: Closed,
    ) -> None:
        self._guard = guard
        self._permit = permit
        self._grant = grant
        self._entered_at = entered_at
        self._prefill_s = prefill_s
        self._tell = tell
        self._closed = False
        self.first_event_s = first_event_s
        """How long the first event may take."""
        self.token_s = token_s
        """And each token of the answer after it."""

    @property
    def deployment(self) -> str:
        return self._permit.deployment

    def correct(self, uncached_tokens: int) -> None:
        """What the engine says it had to compute."""
        self._guard.admission.correct(self._grant, max(1, uncached_tokens))

    def close(self, ending: Ending, *, left_at: float | None = None) -> None:
        """`left_at` for a client that left before the first event: a remote prefill goes on without it, and its weight
        stays for the prefill's estimated rest."""
        if self._closed:
            return
        self._closed = True
        left_s = 0.0 if left_at is None else max(0.0, self._entered_at + self._prefill_s - left_at)
        self._guard.admission.release(self._grant, prefill_left_s=left_s)
        waited_s = 0.0 if left_at is None else left_at - self._entered_at - self._prefill_s
        if ending is Ending.TOO_LITTLE_TIME or waited_s > LEFT_WAITING_S:
            self._guard.doubts.raised(self._permit)
        else:
            self._guard.breakers.report(self._permit, ending)
        self._tell(self._permit.deployment, ending)
