"""The breaker's law. breaker.lua is the same law inside Valkey; tests run both side by side.

    CLOSED     counts reports. Trips when `trip_consecutive` counted failures arrived with no success between, or when
               the last ten seconds hold `trip_volume` reports of which `trip_percent` failed -> OPEN
    OPEN       until `open_until`; then the first replica that claims the probe -> HALF_OPEN
    HALF_OPEN  one probe at a time in the whole fleet. Its holder has `probe_hold_ms`; after that another replica may
               claim it (the holder died, or hangs). `probe_passes` passes in a row -> CLOSED; one failure -> OPEN

Every transition raises the epoch. A report carries the epoch of its permit and is ignored when another epoch rules:
an old success never closes, and an old failure never re-opens, a newer state. A probe's result counts only with the
token of the probe that is out. Each opening after another, without `forgive_ms` of closed life between, doubles the
cooldown; an opening never shortens a deadline.

After closing, traffic ramps up (`ramp_percent`), and fewer failures trip it again.

Times are integer milliseconds of the store's clock, which this code never lets run backwards.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

WINDOW_S = 10
"""The failure window, in one-second buckets: long enough to judge a rate, short enough to forget the past."""

DRAW_SCALE = 1000
"""Random draws enter as integers in [0, DRAW_SCALE), so that Lua and Python compute the very same jitter."""

MAX_DOUBLINGS = 16
"""Beyond this, doubling passes any cooldown ceiling; keeps the power an exact integer in Lua."""


class State(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True)
class BreakerSettings:
    trip_consecutive: int = 5
    """Low traffic must trip too: five failures in a row, however far apart, are enough."""
    trip_volume: int = 20
    """A rate over fewer reports than this says little."""
    trip_percent: int = 50
    ramp_trip_consecutive: int = 2
    """While ramping, one unlucky request is not a relapse; two in a row are."""
    cooldown_ms: int = 5_000
    """The first opening: about the time an engine needs to fail over or a frontend to restart."""
    cooldown_max_ms: int = 120_000
    """A repaired deployment waits no longer than this for its next probe."""
    jitter_percent: int = 20
    probe_passes: int = 3
    probe_hold_ms: int = 10_000
    """For the whole answer to a short synthetic prompt, with room for a cold engine."""
    ramp_step_ms: int = 2_000
    forgive_ms: int = 60_000
    """Closed this long, the next opening starts again with the first cooldown."""


RAMP_PERCENT = (10, 50)
"""Share of traffic in the first and second ramp step after closing; then all of it."""


class Bucket(NamedTuple):
    second: int = 0
    succeeded: int = 0
    failed: int = 0


EMPTY_WINDOW = (Bucket(),) * WINDOW_S


@dataclass(frozen=True)
class Record:
    """What the store keeps of one deployment."""

    state: State = State.CLOSED
    epoch: int = 0
    now: int = 0
    """The latest time seen: time never runs backwards here, whatever the server's clock does."""
    open_until: int = 0
    opens: int = 0
    closed_at: int = 0
    consecutive: int = 0
    probe_token: str = ""
    probe_until: int = 0
    passes: int = 0
    window: tuple[Bucket, ...] = EMPTY_WINDOW


class Snapshot(NamedTuple):
    """What replicas copy. Times are spans, so no two machines' clocks are ever compared."""

    state: State = State.CLOSED
    epoch: int = 0
    opens: int = 0
    open_for_ms: int = 0
    """OPEN: until a probe may be claimed. HALF_OPEN: until the probe that is out is forfeit (0: none is out)."""
    closed_for_ms: int = 0


class Report(NamedTuple):
    """Attempts of one epoch that ended, in order: `trailing` of the failures came after the last success."""

    deployment: str
    epoch: int
    succeeded: int
    failed: int
    trailing: int


def report(record: Record, settings: BreakerSettings, now: int, batch: Report, draw: int) -> Record:
    record = _advanced(record, now)
    if batch.epoch != record.epoch or record.state is not State.CLOSED:
        return record
    second = record.now // 1000
    index = second % WINDOW_S
    bucket = record.window[index]
    if bucket.second != second:
        bucket = Bucket(second)
    bucket = bucket._replace(succeeded=bucket.succeeded + batch.succeeded, failed=bucket.failed + batch.failed)
    record = replace(
        record,
        window=(*record.window[:index], bucket, *record.window[index + 1 :]),
        consecutive=batch.trailing if batch.succeeded else record.consecutive + batch.failed,
    )
    return _opened(record, settings, draw) if batch.failed and _trips(record, settings) else record


def claim_probe(record: Record, settings: BreakerSettings, now: int, token: str) -> tuple[Record, bool]:
    record = _advanced(record, now)
    until = record.now + settings.probe_hold_ms
    if record.state is State.OPEN and record.now >= record.open_until:
        claimed = replace(record, state=State.HALF_OPEN, epoch=record.epoch + 1, passes=0)
    elif record.state is State.HALF_OPEN and (not record.probe_token or record.now >= record.probe_until):
        claimed = record
    else:
        return record, False
    return replace(claimed, probe_token=token, probe_until=until), True


def hasten(record: Record, now: int) -> tuple[Record, bool]:
    """An operator has mended the deployment: an open breaker's probe is due now. Nothing else changes, so a deployment
    that is still broken fails its probe and stays open."""
    record = _advanced(record, now)
    if record.state is not State.OPEN or record.open_until <= record.now:
        return record, False
    return replace(record, open_until=record.now), True


def settle_probe(
    record: Record, settings: BreakerSettings, now: int, token: str, passed: bool, draw: int
) -> tuple[Record, bool]:
    """The second value says whether the result counted: the token was the one that is out."""
    record = _advanced(record, now)
    if record.state is not State.HALF_OPEN or token != record.probe_token:
        return record, False
    if not passed:
        return _opened(record, settings, draw), True
    record = replace(record, probe_token="", probe_until=0, passes=record.passes + 1)
    if record.passes < settings.probe_passes:
        return record, True
    return (
        replace(
            record,
            state=State.CLOSED,
            epoch=record.epoch + 1,
            closed_at=record.now,
            consecutive=0,
            window=EMPTY_WINDOW,
        ),
        True,
    )


def restore(record: Record, now: int, copy: Snapshot) -> Record:
    """A replica's newer copy replaces what the store lost (it restarted empty, or a stale replica took over)."""
    record = _advanced(record, now)
    if copy.epoch <= record.epoch:
        return record
    return Record(
        state=copy.state,
        epoch=copy.epoch,
        now=record.now,
        opens=copy.opens,
        open_until=record.now + copy.open_for_ms if copy.state is State.OPEN else 0,
        closed_at=record.now - copy.closed_for_ms if copy.state is State.CLOSED else 0,
    )


def snapshot(record: Record, now: int) -> Snapshot:
    now = max(now, record.now)
    open_for_ms = closed_for_ms = 0
    if record.state is State.OPEN:
        open_for_ms = max(0, record.open_until - now)
    elif record.state is State.HALF_OPEN:
        open_for_ms = max(0, record.probe_until - now)
    else:
        closed_for_ms = now - record.closed_at
    return Snapshot(record.state, record.epoch, record.opens, open_for_ms, closed_for_ms)


def cooldown_ms(settings: BreakerSettings, opens: int, draw: int) -> int:
    base = min(settings.cooldown_ms << min(opens - 1, MAX_DOUBLINGS), settings.cooldown_max_ms)
    low = base * (100 - settings.jitter_percent) // 100
    return low + base * 2 * settings.jitter_percent * draw // (100 * DRAW_SCALE)


def ramp_percent(settings: BreakerSettings, closed_for_ms: int, epoch: int) -> int:
    """The share of traffic a closed breaker takes. One that never opened (epoch 0) takes all."""
    step = closed_for_ms // settings.ramp_step_ms
    return RAMP_PERCENT[step] if epoch > 0 and step < len(RAMP_PERCENT) else 100


def _advanced(record: Record, now: int) -> Record:
    return replace(record, now=max(now, record.now))


def _trips(record: Record, settings: BreakerSettings) -> bool:
    ramping = ramp_percent(settings, record.now - record.closed_at, record.epoch) < 100
    if record.consecutive >= (settings.ramp_trip_consecutive if ramping else settings.trip_consecutive):
        return True
    oldest = record.now // 1000 - WINDOW_S + 1
    recent = [bucket for bucket in record.window if bucket.second >= oldest]
    failed = sum(bucket.failed for bucket in recent)
    total = failed + sum(bucket.succeeded for bucket in recent)
    return total >= settings.trip_volume and failed * 100 >= settings.trip_percent * total


def _opened(record: Record, settings: BreakerSettings, draw: int) -> Record:
    forgiven = record.state is State.CLOSED and record.now - record.closed_at >= settings.forgive_ms
    opens = 1 if forgiven else record.opens + 1
    return replace(
        record,
        state=State.OPEN,
        epoch=record.epoch + 1,
        opens=opens,
        open_until=max(record.open_until, record.now + cooldown_ms(settings, opens, draw)),
        consecutive=0,
        probe_token="",
        probe_until=0,
        passes=0,
        window=EMPTY_WINDOW,
    )
