"""The breaker of the way to one site's Valkey.

    UP    trips are sent; FAILURES_TO_DROP failures in a row -> DOWN
    DOWN  no request sends a trip (each falls back at once); only the background probe does, at growing, jittered
          intervals; its success -> UP

Requests never probe: a paused Valkey must not cost one of them its patience every second. `generation` grows with
each return, so that whoever keeps absolute state in Valkey knows that it must be written again before any sum read
there is trusted.
"""

from enum import StrEnum

FAILURES_TO_DROP = 2
"""A single slow answer happens (fork for a snapshot, a packet lost); two in a row with nothing between is trouble."""

FIRST_RETRY_S = 0.1
"""A restarted Valkey is back within a few hundred milliseconds."""

LONGEST_RETRY_S = 1.0
"""Replicas must be back, and have written their gauges, within admission's settling time (ledger constants)."""

JITTER = 0.25
"""Replicas lost Valkey at the same moment; they should not all come back at one."""


class LinkState(StrEnum):
    UP = "up"
    DOWN = "down"


class Link:
    def __init__(self) -> None:
        self.state = LinkState.UP
        self.generation = 0
        self.drops = 0
        self._failures = 0
        self._retry_s = FIRST_RETRY_S
        self._retry_at = 0.0

    @property
    def is_up(self) -> bool:
        return self.state is LinkState.UP

    def succeeded(self) -> None:
        self._failures = 0
        if self.state is LinkState.DOWN:
            self.state = LinkState.UP
            self.generation += 1
            self._retry_s = FIRST_RETRY_S

    def failed(self, now: float, draw: float) -> None:
        """`draw` is uniform in [0, 1)."""
        self._failures += 1
        if self.state is LinkState.UP:
            if self._failures < FAILURES_TO_DROP:
                return
            self.state = LinkState.DOWN
            self.drops += 1
        self._retry_at = now + self._retry_s * (1 + JITTER * (2 * draw - 1))
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)

    def probe_due_in_s(self, now: float) -> float:
        return max(0.0, self._retry_at - now)
