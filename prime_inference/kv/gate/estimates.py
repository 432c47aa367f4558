"""What a tier and an engine have lately delivered. Pure: `now` is handed in.

A tier's bandwidth is shared by the loads in flight. A load of b bytes that took T with k loads in flight on average
saw the tier move k * b / (T - t0); the next load, with n already in flight, can expect 1 / (n + 1) of that.
"""

from dataclasses import dataclass

FALL_WEIGHT = 0.5
"""Weight of a sample below the estimate. A tier that turned slow must be believed within two loads: each wrong hit
costs a request more than a missed one."""

RISE_WEIGHT = 0.2
"""Weight of a sample above the estimate: one lucky load is no reason to send everything there."""

SHORTEST_TRANSFER_S = 1e-6
"""A load cannot have taken less than its fixed cost; noise of the clock must not make a bandwidth infinite."""

SILENT_FACTOR = 0.25
"""A load that was not there at its deadline says only `slower`: the estimate falls as if it had seen this part, and at
least to what the tier would have needed for the load to be there."""


@dataclass(frozen=True)
class LoadInFlight:
    """Handed out when a load starts and back when it ends."""

    started_at: float
    load_seconds_at_start: float


class TierEstimate:
    """Bandwidth of one tier for one engine."""

    def __init__(self, bytes_per_s: float, fixed_s: float, now: float) -> None:
        """`bytes_per_s` and `fixed_s` (t0, one load's cost without its bytes) come from the start-up check."""
        self.bytes_per_s = bytes_per_s
        self.fixed_s = fixed_s
        self.in_flight = 0
        self.sampled_at = now
        self._load_seconds = 0.0  # integral of the number in flight
        self._counted_until = now

    def started(self, now: float) -> LoadInFlight:
        self._count(now)
        self.in_flight += 1
        return LoadInFlight(now, self._load_seconds)

    def ended(self, load: LoadInFlight, moved_bytes: int, now: float, unseen_s: float = 0.0) -> None:
        """A load ended, whole or at its deadline, having moved so many bytes, at least one. For `unseen_s` of its time it only
        waited to be seen."""
        self._end(now)
        self.sampled_at = max(self.sampled_at, now)
        self._sample(self._seen(moved_bytes, now - load.started_at - unseen_s, self._shared_by(load, now)))

    def late(self, load: LoadInFlight, asked_bytes: int, now: float) -> None:
        """A load of so many bytes was given up without an answer. It is in flight until it `ended` or `failed`. Where the
        estimate had expected it to take longer, it says nothing."""
        self._count(now)
        self.sampled_at = now
        most = self._seen(asked_bytes, now - load.started_at, self._shared_by(load, now))
        if most < self.bytes_per_s:
            self._sample(self.bytes_per_s * SILENT_FACTOR)
            self.bytes_per_s = min(self.bytes_per_s, most)

    def missed(self, load: LoadInFlight, asked_bytes: int, answered_at: float, now: float) -> None:
        """Nothing came of a load, as was said at `answered_at`. A store's client that gives up a value which is too slow to
        come makes a miss of it, so a wait longer than the load should have taken is no mere miss: the tier is taken for one
        that could just not have brought it by then."""
        self._end(now)
        most = self._seen(asked_bytes, answered_at - load.started_at, self._shared_by(load, now))
        if most < self.bytes_per_s:
            self.bytes_per_s = most
            self.sampled_at = now

    def failed(self, load: LoadInFlight, now: float) -> None:
        """A load that ended early in errors, or was not used: no word on bandwidth."""
        self._end(now)

    @property
    def next_bytes_per_s(self) -> float:
        """What one more load can expect."""
        return self.bytes_per_s / (self.in_flight + 1)

    def _seen(self, moved_bytes: int, took_s: float, shared_by: float) -> float:
        """Bytes a second that the tier moved for all, by one load that took so long."""
        return shared_by * moved_bytes / max(took_s - self.fixed_s, SHORTEST_TRANSFER_S)

    def _shared_by(self, load: LoadInFlight, now: float) -> float:
        """Loads in flight on average since this one began; counted until `now`."""
        took_s = now - load.started_at
        return (self._load_seconds - load.load_seconds_at_start) / took_s if took_s > 0.0 else 1.0

    def _sample(self, seen: float) -> None:
        weight = FALL_WEIGHT if seen < self.bytes_per_s else RISE_WEIGHT
        self.bytes_per_s += weight * (seen - self.bytes_per_s)

    def _end(self, now: float) -> None:
        self._count(now)
        self.in_flight -= 1

    def _count(self, now: float) -> None:
        self._load_seconds += self.in_flight * (now - self._counted_until)
        self._counted_until = now


class PrefillEstimate:
    """Marginal prefill rate of one engine: new tokens a second while it computes a prompt."""

    def __init__(self, tokens_per_s: float) -> None:
        self.tokens_per_s = tokens_per_s

    def observed(self, tokens: int, seconds: float) -> None:
        """A prefill of `tokens` new tokens kept the engine busy for `seconds`."""
        if tokens > 0 and seconds > 0.0:
            self.tokens_per_s += RISE_WEIGHT * (tokens / seconds - self.tokens_per_s)
