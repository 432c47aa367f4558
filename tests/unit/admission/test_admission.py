"""The shell on a store in memory, at times of the test's choice: what only the order of things can break."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from msgspec import structs

from gateway.admission import (
    Admission,
    Ask,
    Capacity,
    Grant,
    Kind,
    LeaseSettings,
    MemoryAdmissionStore,
    Refused,
    Weight,
)
from gateway.admission.outcomes import Outcome
from gateway.admission.store import Replica, Standing, StoreAnswer, StoreAsk
from gateway.ratelimit import charges_for
from gateway.ratelimit.core import UNITS
from gateway.site import SiteUnavailable, Trouble

SETTINGS = LeaseSettings()
HUNDRED = Capacity(Weight(100, 100_000))
ASK = Ask("d", HUNDRED, "t", tokens=10)


@dataclass
class Clock:
    now: float = 1_000.0

    def __call__(self) -> float:
        return self.now

    def ms(self) -> int:
        return int(self.now * 1000)


class Store(MemoryAdmissionStore):
    """Can hold a reply back, break down, or find a bug."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(SETTINGS, clock.ms)
        self.reply = asyncio.Event()
        self.reply.set()
        self.error: Exception | None = None
        self.lasting = False
        self.stalls_s = 0.0
        self.clock = clock
        self.trips = 0

    async def acquire(
        self,
        replica: Replica,
        deployment: str,
        capacity: Capacity,
        held: Mapping[str, Weight],
        asks: Sequence[StoreAsk],
        within_s: float,
    ) -> tuple[Standing, list[StoreAnswer]]:
        self.trips += 1
        if self.error is not None:
            error, self.error = self.error, self.error if self.lasting else None
            self.clock.now += self.stalls_s
            raise error
        answer = await super().acquire(replica, deployment, capacity, held, asks, within_s)
        await self.reply.wait()
        return answer


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def store(clock: Clock) -> Store:
    return Store(clock)


@pytest.fixture
async def admission(store: Store, clock: Clock) -> Admission:
    admission = Admission(store, SETTINGS, clock)
    for _ in range(4):
        await admission._beat([])
        clock.now += 0.9
    return admission


async def take(admission: Admission, count: int, ask: Ask = ASK) -> list[Grant]:
    answers = await asyncio.gather(*(admission.acquire(ask) for _ in range(count)))
    return [answer for answer in answers if isinstance(answer, Grant)]


async def test_a_heartbeat_during_a_trip_does_not_overwrite_what_the_trip_was_granted(
    admission: Admission, store: Store
) -> None:
    store.reply.clear()
    asked = asyncio.create_task(admission.acquire(ASK))
    await asyncio.sleep(0.01)
    await admission._beat(["d"])
    assert store.registry.used("d")["t"].requests >= 1
    store.reply.set()
    assert isinstance(await asked, Grant)


async def test_a_lost_lease_takes_the_headroom_with_it(admission: Admission, store: Store, clock: Clock) -> None:
    await take(admission, 20)
    assert store.registry.used("d")["t"].requests > 20, "headroom, or this shows nothing"
    clock.now += SETTINGS.ttl_ms / 1000
    other = Admission(store, SETTINGS, clock)
    for _ in range(4):
        await other._beat([])
        clock.now += 0.9
    assert len(await take(other, 120)) == 100
    await admission._beat(["d"])
    assert admission.leases_lost == 1
    assert await take(admission, 1) == []
    assert admission.in_use("d").requests == 20


async def test_a_stall_of_this_process_is_not_taken_for_a_lost_site(
    admission: Admission, store: Store, clock: Clock
) -> None:
    store.error, store.stalls_s = SiteUnavailable(Trouble.TIMEOUT), 10.0
    assert len(await take(admission, 1)) == 1
    assert not admission.alone
    assert store.trips == 2, "asked again, not decided alone"


async def test_a_lost_trip_is_decided_on_the_share_at_once(admission: Admission, store: Store) -> None:
    store.error = SiteUnavailable(Trouble.TIMEOUT)
    assert len(await take(admission, 60)) == 60, "one replica: its share is the limit"
    assert admission.alone


async def test_a_client_that_leaves_while_the_site_is_away_does_not_stop_everything(
    admission: Admission, store: Store
) -> None:
    """It had left when its ask was looked at, and could not say so: the line was served again and again in one turn."""
    store.error, store.lasting = SiteUnavailable(Trouble.LINK_DOWN), True
    asking = asyncio.create_task(admission.acquire(ASK))
    await asyncio.sleep(0)  # it stands in line, and nobody has looked
    asking.cancel()
    await asyncio.wait({asking}, timeout=5)
    assert asking.cancelled()
    assert admission.waiting("d") == 0


async def test_a_bug_in_the_store_reaches_those_who_wait_and_not_the_next(admission: Admission, store: Store) -> None:
    store.error = ZeroDivisionError("bug")
    with pytest.raises(ZeroDivisionError):
        await admission.acquire(ASK)
    assert isinstance(await admission.acquire(ASK), Grant)


async def test_who_leaves_while_the_trip_is_under_way_holds_and_pays_nothing(
    admission: Admission, store: Store, clock: Clock
) -> None:
    charges = charges_for("key", 6, None, 10)
    limited = Ask("d", HUNDRED, "t", tokens=10, charges=charges)
    store.reply.clear()
    asked = asyncio.create_task(admission.acquire(limited))
    await asyncio.sleep(0.01)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    store.reply.set()
    await asyncio.sleep(0.01)
    assert admission.in_use("d") == Weight()
    assert admission.outcomes == {Outcome.ABANDONED: 1}
    await admission.limits.flush(clock())
    assert len(await take(admission, 8, limited)) == 6


async def test_a_correction_beyond_what_is_held_is_told_soon(admission: Admission, store: Store) -> None:
    running = asyncio.create_task(admission.run())
    [grant] = await take(admission, 1)
    admission.correct(grant, 5_000)
    await asyncio.sleep(0.05)
    assert store.registry.used("d")["t"].tokens >= 5_000
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_draining_replica_refuses_and_lets_what_runs_finish(admission: Admission, store: Store) -> None:
    grants = await take(admission, 3)
    admission.stop_admitting()
    answer = await admission.acquire(ASK)
    assert isinstance(answer, Refused)
    assert answer.outcome is Outcome.CLOSING
    for grant in grants:
        admission.release(grant)
    await admission.leave()
    assert store.registry.used("d") == {}
    assert admission.in_use("d") == Weight()


async def test_batch_keeps_nothing_it_does_not_use(admission: Admission, store: Store) -> None:
    batch = structs.replace(ASK, kind=Kind.BATCH)
    for grant in await take(admission, 20, batch):
        admission.release(grant)
    await admission._beat(["d"])
    assert store.registry.used("d") == {}


async def test_a_first_token_that_comes_after_the_release_changes_nothing(admission: Admission, clock: Clock) -> None:
    [grant] = await take(admission, 1)
    admission.release(grant)
    for _ in range(3):
        admission._ledger.start_beat()
        admission._ledger.trim("d", Weight())
    admission.correct(grant, 5_000)
    assert admission.in_use("d") == Weight()


async def test_requests_that_go_together_borrow_one_slice(store: Store, clock: Clock) -> None:
    admission = Admission(store, SETTINGS, clock)
    charges = charges_for("k", 1_200, None, 1)
    answers = await asyncio.gather(*(admission.acquire(structs.replace(ASK, charges=charges)) for _ in range(60)))
    assert all(isinstance(answer, Grant) for answer in answers)
    # Each used one; beside them this replica holds a second's budget, and the rest is there for the others.
    (level,) = await store.adjust([charges[0]._replace(amount=0)])
    assert level == (1_200 - 60 - 20) * UNITS
