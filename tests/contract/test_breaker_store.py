"""What every breaker store must do, on the one in memory and on a real Valkey, at times the tests choose."""

import asyncio
from dataclasses import dataclass
from random import Random

import pytest

from gateway.breaker.core import BreakerSettings, Report, Snapshot, State
from gateway.breaker.memory import MemoryBreakerStore
from gateway.breaker.store import BreakerStore
from gateway.breaker.valkey_store import ValkeyBreakerStore
from gateway.site.valkey_store import SiteValkey

SETTINGS = BreakerSettings()
MIDDLE = 500
"""The draw without jitter."""


@dataclass
class Clock:
    now_ms: int = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "valkey"])
def store(request: pytest.FixtureRequest, clock: Clock) -> BreakerStore:
    if request.param == "memory":
        return MemoryBreakerStore(SETTINGS, clock)
    return ValkeyBreakerStore(request.getfixturevalue("site"), SETTINGS, clock)


def failures(count: int, epoch: int = 0) -> Report:
    return Report("d", epoch, succeeded=0, failed=count, trailing=count)


def successes(count: int, epoch: int = 0) -> Report:
    return Report("d", epoch, succeeded=count, failed=0, trailing=0)


async def trip(store: BreakerStore, epoch: int = 0) -> Snapshot:
    return (await store.report(failures(5, epoch), MIDDLE)).snapshot


async def test_an_unknown_deployment_is_closed(store: BreakerStore) -> None:
    snapshot = (await store.read(["d"]))["d"]
    assert (snapshot.state, snapshot.epoch) == (State.CLOSED, 0)


async def test_five_failures_in_a_row_trip_however_far_apart(store: BreakerStore, clock: Clock) -> None:
    for _ in range(4):
        assert (await store.report(failures(1), MIDDLE)).snapshot.state is State.CLOSED
        clock.now_ms += 3_600_000
    assert (await store.report(failures(1), MIDDLE)).snapshot.state is State.OPEN


async def test_a_success_between_failures_starts_the_count_again(store: BreakerStore) -> None:
    await store.report(failures(4), MIDDLE)
    await store.report(successes(1), MIDDLE)
    assert (await store.report(failures(4), MIDDLE)).snapshot.state is State.CLOSED


async def test_half_of_twenty_failing_trips(store: BreakerStore) -> None:
    await store.report(successes(10), MIDDLE)
    for _ in range(3):
        answer = await store.report(Report("d", 0, succeeded=1, failed=4, trailing=1), MIDDLE)
        assert answer.snapshot.state is State.CLOSED, "at most 12 of 25 have failed: 48 %"
    assert (await store.report(failures(1), MIDDLE)).snapshot.state is State.OPEN, "13 of 26"


async def test_failures_older_than_the_window_do_not_count_towards_the_rate(store: BreakerStore, clock: Clock) -> None:
    await store.report(Report("d", 0, succeeded=8, failed=9, trailing=0), MIDDLE)
    clock.now_ms += 10_000
    answer = await store.report(Report("d", 0, succeeded=3, failed=1, trailing=1), MIDDLE)
    assert answer.snapshot.state is State.CLOSED


async def test_reports_of_an_older_epoch_are_ignored(store: BreakerStore, clock: Clock) -> None:
    await trip(store)
    clock.now_ms += 5_000
    await store.claim_probe("d", "t")
    for late in (successes(50), failures(50)):
        answer = await store.report(late, MIDDLE)
        assert not answer.counted
        assert answer.snapshot.state is State.HALF_OPEN


async def test_only_one_of_many_claimants_gets_the_probe(store: BreakerStore, clock: Clock) -> None:
    await trip(store)
    clock.now_ms += 5_000
    answers = await asyncio.gather(*(store.claim_probe("d", f"t{i}") for i in range(10)))
    assert sum(answer.counted for answer in answers) == 1


async def test_no_probe_before_the_cooldown_ends(store: BreakerStore, clock: Clock) -> None:
    await trip(store)
    clock.now_ms += 4_999
    assert not (await store.claim_probe("d", "t")).counted


async def test_a_hastened_opening_may_be_probed_at_once_and_nothing_else_is_hastened(
    store: BreakerStore, clock: Clock
) -> None:
    assert not (await store.hasten("d")).counted, "closed"
    opened = await trip(store)
    answer = await store.hasten("d")
    assert (answer.counted, answer.snapshot) == (True, opened._replace(open_for_ms=0))
    assert not (await store.hasten("d")).counted, "due already"
    assert (await store.claim_probe("d", "t")).counted
    assert not (await store.hasten("d")).counted, "a probe is out"


async def test_a_probe_whose_holder_died_is_reclaimed_and_its_late_result_ignored(
    store: BreakerStore, clock: Clock
) -> None:
    await trip(store)
    clock.now_ms += 5_000
    assert (await store.claim_probe("d", "dead")).counted
    clock.now_ms += SETTINGS.probe_hold_ms - 1
    assert not (await store.claim_probe("d", "next")).counted
    clock.now_ms += 1
    assert (await store.claim_probe("d", "next")).counted
    assert not (await store.settle_probe("d", "dead", passed=False, draw=MIDDLE)).counted
    assert (await store.settle_probe("d", "next", passed=True, draw=MIDDLE)).counted


async def test_k_passes_close_it_and_one_failure_reopens_it_for_longer(store: BreakerStore, clock: Clock) -> None:
    await trip(store)
    clock.now_ms += 5_000
    await store.claim_probe("d", "a")
    reopened = (await store.settle_probe("d", "a", passed=False, draw=MIDDLE)).snapshot
    assert (reopened.state, reopened.open_for_ms) == (State.OPEN, 10_000)
    clock.now_ms += 10_000
    for number in range(SETTINGS.probe_passes):
        assert (await store.claim_probe("d", f"b{number}")).counted
        answer = await store.settle_probe("d", f"b{number}", passed=True, draw=MIDDLE)
        expected = State.CLOSED if number == SETTINGS.probe_passes - 1 else State.HALF_OPEN
        assert answer.snapshot.state is expected


async def close_again(store: BreakerStore, clock: Clock) -> int:
    opened = await trip(store, (await store.read(["d"]))["d"].epoch)
    clock.now_ms += opened.open_for_ms
    for number in range(SETTINGS.probe_passes):
        await store.claim_probe("d", str(number))
        answer = await store.settle_probe("d", str(number), passed=True, draw=MIDDLE)
    return answer.snapshot.epoch


async def test_failures_from_before_an_opening_do_not_open_it_again_after_it_closed(
    store: BreakerStore, clock: Clock
) -> None:
    epoch = await close_again(store, clock)
    answer = await store.report(failures(50, epoch=0), MIDDLE)
    assert (answer.counted, answer.snapshot.state, answer.snapshot.epoch) == (False, State.CLOSED, epoch)


async def test_while_ramping_two_failures_trip(store: BreakerStore, clock: Clock) -> None:
    epoch = await close_again(store, clock)
    assert (await store.report(failures(1, epoch), MIDDLE)).snapshot.state is State.CLOSED
    assert (await store.report(failures(1, epoch), MIDDLE)).snapshot.state is State.OPEN


async def test_a_minute_of_closed_life_forgives_earlier_openings(store: BreakerStore, clock: Clock) -> None:
    epoch = await close_again(store, clock)
    assert (await trip(store, epoch)).open_for_ms == 10_000
    clock.now_ms += 10_000
    for number in range(SETTINGS.probe_passes):
        await store.claim_probe("d", str(number))
        answer = await store.settle_probe("d", str(number), passed=True, draw=MIDDLE)
    clock.now_ms += SETTINGS.forgive_ms
    assert (await trip(store, answer.snapshot.epoch)).open_for_ms == 5_000


async def test_a_clock_that_jumps_back_does_not_prolong_an_opening(store: BreakerStore, clock: Clock) -> None:
    await store.report(successes(1), MIDDLE)
    clock.now_ms -= 3_600_000
    assert (await trip(store)).open_for_ms == 5_000


async def test_a_newer_copy_is_restored_into_a_store_that_lost_it_and_an_older_one_is_not(store: BreakerStore) -> None:
    copy = Snapshot(State.OPEN, epoch=7, opens=3, open_for_ms=9_000, closed_for_ms=0)
    assert (await store.restore("d", copy)).snapshot == copy
    assert not (await store.restore("d", copy._replace(epoch=6, state=State.CLOSED))).counted
    assert (await store.read(["d"]))["d"] == copy


async def test_each_transition_is_pushed(store: BreakerStore, clock: Clock) -> None:
    heard: list[str] = []
    listening = asyncio.create_task(store.listen(heard.append))
    await asyncio.sleep(0.1)
    await store.report(successes(1), MIDDLE)
    await trip(store)
    clock.now_ms += 5_000
    await store.claim_probe("d", "t")
    for _ in range(100):
        if len(heard) >= 2:
            break
        await asyncio.sleep(0.01)
    listening.cancel()
    assert heard == ["d", "d"]


# ── the two laws side by side ──

LIFE = BreakerSettings(forgive_ms=20_000)
"""Short enough that a random life is forgiven now and then."""


async def step(store: BreakerStore, random: Random) -> object:
    draw = random.randrange(1_000)
    known = (await store.read(["d"]))["d"]
    match random.choice(("report", "report", "report", "claim", "settle", "settle", "hasten", "restore", "read")):
        case "report":
            failed, succeeded = random.choice((0, 0, 1, 2, 6)), random.choice((0, 0, 1, 6))
            trailing = min(failed, random.choice((0, 1, 4)))
            epoch = known.epoch - random.choice((0, 0, 0, 0, 1))
            return await store.report(Report("d", epoch, succeeded, failed, trailing), draw)
        case "claim":
            return await store.claim_probe("d", random.choice("ab"))
        case "hasten":
            return await store.hasten("d")
        case "settle":
            return await store.settle_probe("d", random.choice("ab"), random.random() < 0.9, draw)
        case "restore" if random.random() < 0.2:
            copy = Snapshot(random.choice(list(State)), known.epoch + random.choice((-1, 0, 2)), random.randint(0, 3))
            if copy.state is State.OPEN:
                copy = copy._replace(open_for_ms=random.randint(0, 5_000))
            if copy.state is State.CLOSED:
                copy = copy._replace(closed_for_ms=random.randint(0, 9_000))
            return await store.restore("d", copy)
        case _:
            return await store.read(["d", "another"])


@pytest.mark.parametrize("seed", range(8))
async def test_lua_and_python_agree_on_every_step_of_a_random_life(site: SiteValkey, clock: Clock, seed: int) -> None:
    stores: list[BreakerStore] = [MemoryBreakerStore(LIFE, clock), ValkeyBreakerStore(site, LIFE, clock)]
    time = Random(seed)
    seen = set()
    for number in range(300):
        clock.now_ms += time.choice((0, 10, 300, 1_000, 1_000, 4_000, 10_000, -2_000))
        told = [await step(store, Random(seed * 1_000 + number)) for store in stores]
        assert told[0] == told[1], f"step {number}"
        snapshots = [(await store.read(["d"]))["d"] for store in stores]
        assert snapshots[0] == snapshots[1]
        seen.add(snapshots[0].state)
    assert seen == set(State), "this life never left a state: it shows too little"
