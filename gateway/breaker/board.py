"""A replica's copy of its deployments' breakers: what it permits, and what it still has to report.

Pure: time and draws are handed in. Nothing here waits, so the request path can ask on every attempt.

While the site's Valkey is away, copies come from the replica's own fallback store (`Source.LOCAL`); a permit's report
counts only with the source that issued it, for the two count epochs apart.

Panic rule: an open breaker still lets a trickle through when no peer (the deployments that could serve the request)
takes traffic. Should every breaker be wrong at once, the trickle is how a client, and we, find out. For the same reason
a ramp holds nothing back that no peer would take: admission bounds what a recovering deployment bears.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gateway.breaker.core import BreakerSettings, Report, Snapshot, State, ramp_percent
from gateway.breaker.endings import COUNTED, Ending

PANIC_SHARE = 0.1
"""Enough to notice recovery by real traffic, too little to keep a struggling deployment down."""

PANIC_EVERY_S = 1.0
"""At low traffic a tenth rounds to nothing: one request a second and replica passes in any case."""


class Verdict(StrEnum):
    """Closed set, used as a metric label. The first three let the attempt go."""

    CLOSED = "closed"
    RAMP = "ramp"
    PANIC = "panic"
    RAMP_HELD = "ramp_held"
    OPEN = "open"
    HALF_OPEN = "half_open"


ALLOWING = frozenset({Verdict.CLOSED, Verdict.RAMP, Verdict.PANIC})


class Source(StrEnum):
    SHARED = "shared"
    LOCAL = "local"


@dataclass(slots=True)
class Permit:
    """Belongs to one attempt, which reports its ending exactly once if `allowed`."""

    deployment: str
    verdict: Verdict
    epoch: int
    source: Source
    reported: bool = False

    @property
    def allowed(self) -> bool:
        return self.verdict in ALLOWING


@dataclass(slots=True)
class Copy:
    snapshot: Snapshot
    read_at: float


@dataclass(slots=True)
class _Pending:
    succeeded: int = 0
    failed: int = 0
    trailing: int = 0


NEVER_READ = Copy(Snapshot(), 0.0)


@dataclass
class Board:
    settings: BreakerSettings
    source: Source = Source.SHARED
    _copies: dict[Source, dict[str, Copy]] = field(default_factory=lambda: {source: {} for source in Source})
    _pending: dict[tuple[Source, str, int], _Pending] = field(default_factory=dict)
    _panicked_at: dict[str, float] = field(default_factory=dict)

    # ── the request path ──

    def permit(self, deployment: str, peers: Iterable[str], now: float, draw: float) -> Permit:
        copy = self._copy(deployment)
        return Permit(deployment, self._verdict(deployment, copy, peers, now, draw), copy.snapshot.epoch, self.source)

    def report(self, permit: Permit, ending: Ending) -> bool:
        """True if this is a counted failure, which is worth sending at once."""
        if permit.reported or not permit.allowed:
            return False
        permit.reported = True
        failed = ending in COUNTED
        if not failed and ending is not Ending.SUCCEEDED:
            return False
        pending = self._pending.setdefault((permit.source, permit.deployment, permit.epoch), _Pending())
        if failed:
            pending.failed += 1
            pending.trailing += 1
        else:
            pending.succeeded += 1
            pending.trailing = 0
        return failed

    # ── the background tasks ──

    def put_back(self, batch: Report) -> None:
        """A report that did not arrive; whether it was counted is unknown, and counting twice errs towards safety."""
        pending = self._pending.setdefault((self.source, batch.deployment, batch.epoch), _Pending())
        pending.trailing = pending.trailing if pending.succeeded else pending.trailing + batch.trailing
        pending.succeeded += batch.succeeded
        pending.failed += batch.failed

    def take_reports(self) -> list[Report]:
        """What is pending for the present source; reports for the other one are dropped, their epochs are void."""
        reports = [
            Report(deployment, epoch, pending.succeeded, pending.failed, pending.trailing)
            for (source, deployment, epoch), pending in self._pending.items()
            if source is self.source
        ]
        self._pending.clear()
        return reports

    def update(self, deployment: str, snapshot: Snapshot, now: float) -> bool:
        """False, and no change, if the store knows less than this copy: it has lost something."""
        known = self._copies[self.source].get(deployment)
        if known is not None and snapshot.epoch < known.snapshot.epoch:
            return False
        self._copies[self.source][deployment] = Copy(snapshot, now)
        return True

    def turn_local(self) -> None:
        """The fallback store starts with the copies, epochs included: what is pending counts there."""
        self.source = Source.LOCAL
        self._copies[Source.LOCAL].clear()
        self._pending = {
            (Source.LOCAL, deployment, epoch): pending for (_, deployment, epoch), pending in self._pending.items()
        }

    def turn_shared(self) -> None:
        self.source = Source.SHARED

    def aged(self, deployment: str, now: float) -> Snapshot:
        """The copy with its spans brought up to `now`."""
        copy = self._copy(deployment)
        passed_ms = int((now - copy.read_at) * 1000)
        return copy.snapshot._replace(
            open_for_ms=max(0, copy.snapshot.open_for_ms - passed_ms),
            closed_for_ms=copy.snapshot.closed_for_ms + (passed_ms if copy.snapshot.state is State.CLOSED else 0),
        )

    def probes_due(self, deployments: Iterable[str], now: float) -> list[str]:
        due = []
        for deployment in deployments:
            snapshot = self.aged(deployment, now)
            if snapshot.state is not State.CLOSED and snapshot.open_for_ms == 0:
                due.append(deployment)
        return due

    def state(self, deployment: str) -> State:
        return self._copy(deployment).snapshot.state

    def states(self, deployments: Iterable[str]) -> Mapping[str, State]:
        return {deployment: self._copy(deployment).snapshot.state for deployment in deployments}

    # ── internals ──

    def _copy(self, deployment: str) -> Copy:
        return self._copies[self.source].get(deployment, NEVER_READ)

    def _verdict(self, deployment: str, copy: Copy, peers: Iterable[str], now: float, draw: float) -> Verdict:
        state = copy.snapshot.state
        if state is State.CLOSED:
            closed_for_ms = copy.snapshot.closed_for_ms + int((now - copy.read_at) * 1000)
            percent = ramp_percent(self.settings, closed_for_ms, copy.snapshot.epoch)
            if percent == 100:
                return Verdict.CLOSED
            held = draw * 100 >= percent and self._taken_by_another(deployment, peers)
            return Verdict.RAMP_HELD if held else Verdict.RAMP
        if not self._taken_by_another(deployment, peers):
            due = now - self._panicked_at.get(deployment, -PANIC_EVERY_S) >= PANIC_EVERY_S
            if due or draw < PANIC_SHARE:
                self._panicked_at[deployment] = now
                return Verdict.PANIC
        return Verdict.OPEN if state is State.OPEN else Verdict.HALF_OPEN

    def _taken_by_another(self, deployment: str, peers: Iterable[str]) -> bool:
        return any(self._copy(peer).snapshot.state is State.CLOSED for peer in peers if peer != deployment)
