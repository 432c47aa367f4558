"""What every admission store must do, on the one in memory and on a real Valkey, at times the tests choose."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import pytest

from gateway.admission.memory import MemoryAdmissionStore
from gateway.admission.policy import NOTHING, Capacity, Kind, Weight, clamped, total
from gateway.admission.store import (
    AdmissionStore,
    LeaseSettings,
    Lent,
    Replica,
    Standing,
    StoreAnswer,
    StoreAsk,
    Verdict,
)
from gateway.admission.valkey_store import ValkeyAdmissionStore
from gateway.ratelimit.core import NEVER_MS, UNITS, Charge
from gateway.ratelimit.slices import Loan
from gateway.site.valkey_store import SiteValkey

SETTINGS = LeaseSettings()
TEN = Capacity(Weight(10, 10_000))
ONE = Weight(1, 100)
WITHIN_S = 5.0


@dataclass
class Clock:
    now_ms: int = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "valkey"])
def store(request: pytest.FixtureRequest, clock: Clock) -> AdmissionStore:
    if request.param == "memory":
        return MemoryAdmissionStore(SETTINGS, clock)
    return ValkeyAdmissionStore(request.getfixturevalue("site"), SETTINGS, clock)


@dataclass
class Process:
    """A replica as the store sees it: keeps its gauges, writes them with every trip."""

    store: AdmissionStore
    epoch: str
    seq: int = 0
    replicas: int = 1
    held: dict[str, Weight] = field(default_factory=dict)
    standing: Standing | None = None

    def me(self) -> Replica:
        self.seq += 1
        return Replica(self.epoch, self.seq, known=self.standing is not None, replicas=self.replicas)

    async def acquire(self, capacity: Capacity, *asks: StoreAsk, deployment: str = "d") -> list[StoreAnswer]:
        self.standing, answers = await self.store.acquire(self.me(), deployment, capacity, self.held, asks, WITHIN_S)
        for ask, answer in zip(asks, answers, strict=True):
            if answer.verdict is Verdict.GRANTED:
                self.held[ask.account] = self.held.get(ask.account, NOTHING).plus(ask.weight).plus(answer.headroom)
        return answers

    async def take(self, capacity: Capacity, account: str, count: int, kind: Kind = Kind.INTERACTIVE) -> int:
        """How many of `count` single requests were granted."""
        asks = [StoreAsk(account, kind, ONE, NOTHING)] * count
        return sum(answer.verdict is Verdict.GRANTED for answer in await self.acquire(capacity, *asks))

    async def beat(self, capacity: Capacity, deployment: str = "d") -> Standing:
        self.standing = await self.store.beat(self.me(), {deployment: (capacity, self.held)})
        return self.standing


async def settled(store: AdmissionStore, clock: Clock, count: int = 1) -> list[Process]:
    """Replicas that have been there for so long that sums are trusted."""
    replicas = [Process(store, f"epoch{i}") for i in range(count)]
    for _ in range(3):
        for replica in replicas:
            await replica.beat(TEN)
        clock.now_ms += 1_000
    return replicas


async def test_no_more_is_granted_than_the_limit_whoever_asks(store: AdmissionStore, clock: Clock) -> None:
    a, b = await settled(store, clock, 2)
    assert await a.take(TEN, "t", 7) == 7
    assert await b.take(TEN, "t", 7) == 3
    assert await a.take(TEN, "u", 1) == 0


async def test_tokens_are_a_limit_of_their_own(store: AdmissionStore, clock: Clock) -> None:
    [a] = await settled(store, clock)
    big = StoreAsk("t", Kind.INTERACTIVE, Weight(1, 6_000), NOTHING)
    verdicts = [answer.verdict for answer in await a.acquire(TEN, big, big)]
    assert verdicts == [Verdict.GRANTED, Verdict.FULL]


async def test_a_lost_decrement_heals_at_the_next_write(store: AdmissionStore, clock: Clock) -> None:
    a, b = await settled(store, clock, 2)
    await a.take(TEN, "t", 10)
    a.held["t"] = ONE  # nine requests ended; no write yet
    assert await b.take(TEN, "t", 1) == 0
    await a.beat(TEN)
    assert await b.take(TEN, "t", 10) == 9


async def test_a_dead_replica_gives_everything_back_after_the_ttl_and_not_before(
    store: AdmissionStore, clock: Clock
) -> None:
    dead, alive = await settled(store, clock, 2)
    await dead.take(TEN, "t", 10)
    for _ in range(3):
        clock.now_ms += 1_000
        assert await alive.take(TEN, "t", 1) == 0
    clock.now_ms += SETTINGS.ttl_ms - 3_000
    assert await alive.take(TEN, "t", 10) == 10


async def test_a_replica_that_comes_back_registers_what_it_truly_holds_and_gets_nothing_until_the_sum_fits(
    store: AdmissionStore, clock: Clock
) -> None:
    paused, other = await settled(store, clock, 2)
    await paused.take(TEN, "t", 8)
    for _ in range(5):
        clock.now_ms += 1_000
        await other.beat(TEN)
    assert await other.take(TEN, "t", 10) == 10, "the paused one's lease had ended"
    assert await paused.take(TEN, "t", 1) == 0
    assert paused.standing is not None
    assert paused.standing.lease_lost
    other.held["t"] = Weight(3, 300)
    await other.beat(TEN)
    assert await paused.take(TEN, "t", 1) == 0, "8 + 3 is more than 10"
    paused.held["t"] = Weight(6, 600)
    assert await paused.take(TEN, "t", 2) == 1
    assert not paused.standing.lease_lost, "told once"


async def test_an_older_trip_that_arrives_late_changes_nothing(store: AdmissionStore, clock: Clock) -> None:
    a, b = await settled(store, clock, 2)
    await a.take(TEN, "t", 10)
    late = Replica(a.epoch, seq=1, known=True, replicas=2)
    _, [answer] = await store.acquire(late, "d", TEN, {}, [StoreAsk("t", Kind.INTERACTIVE, ONE, NOTHING)], WITHIN_S)
    await store.beat(late, {"d": (TEN, {})})
    assert answer.verdict is Verdict.FULL
    assert await b.take(TEN, "t", 1) == 0, "the newer gauges stand"


async def test_leaving_gives_everything_back_at_once(store: AdmissionStore, clock: Clock) -> None:
    a, b = await settled(store, clock, 2)
    await a.take(TEN, "t", 10)
    await store.leave(a.me(), ["d"])
    assert await b.take(TEN, "t", 10) == 10
    assert b.standing is not None
    assert b.standing.replicas == 1


# ── floors, borrowing, batch ──

FLOORS = Capacity(Weight(20, 20_000), {"gold": Weight(8, 8_000), "silver": Weight(4, 4_000)})


async def test_an_idle_floor_is_borrowed_but_for_its_last_share(store: AdmissionStore, clock: Clock) -> None:
    [a] = await settled(store, clock)
    assert await a.take(FLOORS, "serverless", 20) == 20 - 2 - 1


async def test_the_owner_gets_its_last_share_at_once_and_then_all_that_comes_free(
    store: AdmissionStore, clock: Clock
) -> None:
    [a] = await settled(store, clock)
    await a.take(FLOORS, "serverless", 20)
    assert await a.take(FLOORS, "gold", 8) == 2
    a.held["serverless"] = Weight(13, 1_300)
    assert await a.take(FLOORS, "serverless", 4) == 0, "gold is calling for the rest of its floor"
    assert await a.take(FLOORS, "gold", 6) == 4


async def test_borrowing_goes_on_when_the_owner_no_longer_calls(store: AdmissionStore, clock: Clock) -> None:
    [a] = await settled(store, clock)
    await a.take(FLOORS, "serverless", 20)
    await a.take(FLOORS, "gold", 8)
    a.held = {"serverless": Weight(13, 1_300)}
    assert await a.take(FLOORS, "serverless", 1) == 0
    clock.now_ms += SETTINGS.calling_ms
    assert await a.take(FLOORS, "serverless", 9) == 4


async def test_a_tenant_above_its_floor_shares_the_rest_like_anybody(store: AdmissionStore, clock: Clock) -> None:
    [a] = await settled(store, clock)
    assert await a.take(FLOORS, "gold", 20) == 20 - 1, "all but silver's last share"


async def test_batch_leaves_every_floor_and_the_last_fifth(store: AdmissionStore, clock: Clock) -> None:
    [a] = await settled(store, clock)
    assert await a.take(FLOORS, "gold/batch", 20, Kind.BATCH) == 20 - 4 - 12
    assert await a.take(FLOORS, "serverless", 20) == 20 - 4 - 3, "interactive requests go on where batch stops"


# ── headroom ──


async def ask_headroom(process: Process, wanted: Weight, capacity: Capacity = TEN, account: str = "t") -> Weight:
    [answer] = await process.acquire(capacity, StoreAsk(account, Kind.INTERACTIVE, ONE, wanted))
    return answer.headroom


async def test_headroom_shrinks_to_nothing_as_capacity_gets_scarce(store: AdmissionStore, clock: Clock) -> None:
    [a] = await settled(store, clock)
    wanted = Weight(3, 300)
    assert await ask_headroom(a, wanted) == wanted
    assert await ask_headroom(a, wanted) == Weight(3, 300)
    assert await ask_headroom(a, wanted) == NOTHING, "nine of ten are held: the last fifth is handed out one by one"
    assert a.standing is not None
    assert a.standing.scarce == {"d": True}


async def test_headroom_never_comes_out_of_an_idle_floor(store: AdmissionStore, clock: Clock) -> None:
    [a] = await settled(store, clock)
    assert (await ask_headroom(a, Weight(20, 10_000), FLOORS)).requests == 20 - 4 - 12 - 1
    assert (await ask_headroom(a, Weight(20, 10_000), FLOORS, "gold")).requests == 8 - 1


async def test_the_others_hear_of_scarcity_by_push_and_by_heartbeat(store: AdmissionStore, clock: Clock) -> None:
    a, b = await settled(store, clock, 2)
    heard: list[str] = []
    listening = asyncio.create_task(store.listen(heard.append))
    await asyncio.sleep(0.1)
    assert (await b.beat(TEN)).scarce == {"d": False}
    await a.take(TEN, "t", 11)
    await a.take(TEN, "t", 1)
    assert (await b.beat(TEN)).scarce == {"d": True}
    for _ in range(100):
        if heard:
            break
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    listening.cancel()
    assert heard == ["d"], "twice refused within a tenth of a second is one push"


# ── when sums cannot be trusted ──


async def test_after_a_gap_a_replica_gets_no_more_than_its_share_until_all_have_registered(
    store: AdmissionStore, clock: Clock
) -> None:
    a, b = await settled(store, clock, 2)
    await a.take(TEN, "t", 9)
    clock.now_ms += SETTINGS.ttl_ms + 1_000  # Valkey was paused, or unreachable: both leases ended
    b.replicas = 2
    assert await b.take(TEN, "t", 10) == 5
    assert b.standing is not None
    assert b.standing.settling
    a.replicas = 2
    assert await a.take(TEN, "t", 1) == 0
    b.held = {}
    for _ in range(2):
        clock.now_ms += 1_000
        await a.beat(TEN)
        await b.beat(TEN)
    assert await b.take(TEN, "t", 10) == 1, "the sum is trusted again: 9 are a's"


async def test_a_clock_that_jumps_back_neither_ends_nor_prolongs_leases_for_the_living(
    store: AdmissionStore, clock: Clock
) -> None:
    a, b = await settled(store, clock, 2)
    await a.take(TEN, "t", 10)
    clock.now_ms -= 60_000
    assert await b.take(TEN, "t", 1) == 0
    assert (await a.beat(TEN)).lease_lost is False


# ── rate limits in the same trip ──


def limited(charge: Charge, slice_: int = 0, weight: Weight = ONE) -> StoreAsk:
    return StoreAsk("t", Kind.INTERACTIVE, weight, NOTHING, (Loan(charge, slice_),))


async def test_a_small_limit_is_exact_and_refills_evenly(store: AdmissionStore, clock: Clock) -> None:
    [a] = await settled(store, clock)
    charge = Charge("k:requests", limit=3, amount=1)
    answers = await a.acquire(TEN, *[limited(charge)] * 4)
    assert [answer.verdict for answer in answers] == [Verdict.GRANTED] * 3 + [Verdict.LIMITED]
    assert (answers[3].short, answers[3].wait_ms) == (0, 20_000)
    for _ in range(20):
        clock.now_ms += 1_000
        await a.beat(TEN)
    [answer] = await a.acquire(TEN, limited(charge))
    assert answer == StoreAnswer(Verdict.GRANTED, NOTHING, (Lent(0, 0),))


async def test_nothing_is_charged_when_admission_refuses(store: AdmissionStore, clock: Clock) -> None:
    [a] = await settled(store, clock)
    charge = Charge("k:requests", limit=3, amount=1)
    [refused] = await a.acquire(TEN, limited(charge, weight=Weight(1, 10_001)))
    assert refused.verdict is Verdict.FULL
    assert list(await store.adjust([charge._replace(amount=0)])) == [3 * UNITS]


async def test_nothing_is_held_or_charged_when_any_of_the_limits_is_short(store: AdmissionStore, clock: Clock) -> None:
    [a] = await settled(store, clock)
    requests, tokens = Charge("k:requests", 600, 1), Charge("k:tokens", 1_000, 900)
    both = StoreAsk("t", Kind.INTERACTIVE, ONE, NOTHING, (Loan(requests, 10), Loan(tokens, 0)))
    granted, short = await a.acquire(TEN, both, both)
    assert granted.lent == (Lent(10, 589 * UNITS), Lent(0, 100 * UNITS))
    assert (short.verdict, short.short, short.wait_ms) == (Verdict.LIMITED, 1, 48_000)
    assert a.held["t"] == ONE
    assert list(await store.adjust([requests._replace(amount=0)])) == [589 * UNITS]


async def test_a_charge_larger_than_the_whole_budget_never_passes(store: AdmissionStore, clock: Clock) -> None:
    [a] = await settled(store, clock)
    [answer] = await a.acquire(TEN, limited(Charge("k:tokens", 1_000, 1_001)))
    assert (answer.verdict, answer.wait_ms) == (Verdict.LIMITED, NEVER_MS)


async def test_what_was_used_beyond_the_estimate_is_a_debt_and_what_was_not_used_comes_back(
    store: AdmissionStore, clock: Clock
) -> None:
    charge = Charge("k:tokens", 1_000, 1_500)
    assert list(await store.adjust([charge])) == [-500 * UNITS]
    assert list(await store.adjust([charge])) == [-1_000 * UNITS], "a debt is never more than a minute"
    assert list(await store.adjust([charge._replace(amount=-5_000)])) == [1_000 * UNITS]


async def test_a_slice_is_lent_as_far_as_it_goes(store: AdmissionStore, clock: Clock) -> None:
    [a] = await settled(store, clock)
    charge = Charge("k:requests", 600, 596)
    [answer] = await a.acquire(TEN, limited(charge, slice_=10))
    assert answer.lent == (Lent(4, 0),)


# ── the two laws side by side ──

ACCOUNTS = ("gold", "silver", "serverless", "7", "gold/batch")
LIMITS = {"k:requests": 7, "k:tokens": 1_000_000, "l:requests": 600}


def random_ask(random: Random) -> StoreAsk:
    account = random.choice(ACCOUNTS)
    buckets = random.sample(list(LIMITS), random.choice((0, 0, 1, 2)))
    return StoreAsk(
        account,
        Kind.BATCH if account.endswith("batch") else Kind.INTERACTIVE,
        Weight(1, random.choice((0, 100, 900, 2_500))),
        random.choice((NOTHING, Weight(1, 500), Weight(3, 1_000))),
        tuple(
            Loan(Charge(name, LIMITS[name], random.choice((1, 1, 2, 6, 599, 601))), random.choice((0, 5, 20)))
            for name in buckets
        ),
    )


async def step(store: AdmissionStore, process: Process, seq: int, random: Random) -> object:
    """One trip as `random` says; `process` keeps its gauges, so that capacity really fills and empties."""
    process.seq = seq - random.choice((0, 0, 0, 0, 0, 1, 2, 9, 10, 20))
    process.replicas = random.choice((1, 2, 5))
    for account, weight in list(process.held.items()):
        if random.random() < 0.3:
            left = random.randint(0, weight.requests)
            process.held[account] = Weight(left, weight.tokens * left // max(1, weight.requests))
    match random.choice(("acquire", "acquire", "acquire", "beat", "beat", "leave", "adjust")):
        case "acquire":
            asks = [random_ask(random) for _ in range(random.randint(0, 5))]
            answers = await process.acquire(FLOORS, *asks, deployment=random.choice("dde"))
            return answers, process.standing
        case "beat":
            deployments = random.choice(("", "d", "de"))
            return await store.beat(process.me(), {name: (FLOORS, process.held) for name in deployments})
        case "leave" if random.random() < 0.2:
            return await store.leave(process.me(), ["d"])
        case _:
            amount = random.randint(-300, 300)
            charges = [Charge(name, limit, amount) for name, limit in LIMITS.items()]
            return [int(level) for level in await store.adjust(charges)]


@pytest.mark.parametrize("seed", range(8))
async def test_lua_and_python_agree_on_every_step_of_a_random_life(site: SiteValkey, clock: Clock, seed: int) -> None:
    stores: list[AdmissionStore] = [
        MemoryAdmissionStore(SETTINGS, clock),
        ValkeyAdmissionStore(site, SETTINGS, clock),
    ]
    fleets = [[Process(store, f"epoch{number}") for number in range(3)] for store in stores]
    time = Random(seed)
    for number in range(200):
        clock.now_ms += time.choice((0, 0, 10, 100, 500, 1_000, 1_000, -200, 2_600, 4_001))
        who = time.randrange(3)
        told = [
            await step(store, fleet[who], 10 + number * 10, Random(seed * 1_000 + number))
            for store, fleet in zip(stores, fleets, strict=True)
        ]
        assert told[0] == told[1], f"step {number}"
        assert fleets[0][who].held == fleets[1][who].held


def test_an_oversized_request_gets_in_alone() -> None:
    weight = clamped(FLOORS, "serverless", Kind.INTERACTIVE, Weight(1, 99_999))
    assert weight == Weight(1, 20_000 - 2_000 - 1_000)
    used: Mapping[str, Weight] = {}
    assert total(used.values()) == NOTHING
