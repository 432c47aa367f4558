"""The time one request may spend on its site's Valkey, all trips together."""

from dataclasses import dataclass

TRIP_BUDGET_S = 0.1
"""What Valkey trouble may add to a request in total. A healthy trip takes well under a millisecond in a site, so
this is two orders of magnitude of patience, and still nothing next to a prefill."""

TRIP_TIMEOUT_S = 0.045
"""One trip of a request. A request may wait for the trip in flight and then for its own: two of these and the event
loop's own delay stay inside TRIP_BUDGET_S."""

BACKGROUND_TRIP_TIMEOUT_S = 0.25
"""A heartbeat, poll or report, which no client waits for. Short enough to leave convergence its second."""


@dataclass(frozen=True)
class Patience:
    request_s: float = TRIP_TIMEOUT_S
    background_s: float = BACKGROUND_TRIP_TIMEOUT_S


class TripBudget:
    """Handed along with a request: each trip asks how long it may take."""

    __slots__ = ("_ends_at",)

    def __init__(self, now: float, budget_s: float = TRIP_BUDGET_S) -> None:
        self._ends_at = now + budget_s

    def remaining_s(self, now: float) -> float:
        return max(0.0, self._ends_at - now)
