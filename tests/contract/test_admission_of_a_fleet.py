"""Several replicas' admission on a real Valkey, in real time; the referee counts what runs."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from gateway.admin.leases import leases_of
from gateway.admission import Admission, Ask, Capacity, Grant, Kind, LeaseSettings, Outcome, Priority, Refused, Weight
from gateway.admission.store import AdmissionStore, Replica
from gateway.admission.valkey_store import ValkeyAdmissionStore, held_key
from gateway.ratelimit import charges_for, headers
from gateway.ratelimit.core import UNITS
from gateway.site.trip_budget import TRIP_BUDGET_S, Patience, TripBudget
from gateway.site.valkey_store import SiteAddress, SiteValkey
from tests.contract.conftest import CALM
from tests.valkey_server import ValkeyServer

QUICK = LeaseSettings(heartbeat_ms=100, ttl_ms=4_000, gap_ms=3_000, settle_ms=300)
"""Quick to settle; patient enough for a machine on which this process may not run for a second or two."""
TEN = Capacity(Weight(10, 1_000_000))
HUNDRED = Capacity(Weight(100, 1_000_000))
BUSY_MACHINE_S = 1.5
"""What a crowded test machine may add to a measured wait before we call it broken: far below the nine seconds that
redis-py's own defaults make of a lost Valkey. The real waits are in `tests/contract/measure.py`."""


@dataclass
class Fleet:
    replicas: list[Admission]
    sites: list[SiteValkey]
    running: int = 0
    most: int = 0
    held: dict[int, list[Grant]] = field(default_factory=dict)

    def started(self) -> None:
        self.running += 1
        self.most = max(self.most, self.running)

    async def fill(self, who: int, count: int) -> None:
        """Also on a machine so busy that a trip is lost here and there."""
        assert await self.take(who, count, ask(patience_s=10.0)) == count

    async def take(self, who: int, count: int, ask: Ask) -> int:
        answers = await asyncio.gather(*(self.replicas[who].acquire(ask) for _ in range(count)))
        granted = [each for each in answers if isinstance(each, Grant)]
        self.held.setdefault(who, []).extend(granted)
        return len(granted)

    async def waits(self) -> list[float]:
        """Seconds that each of ten requests at each of three replicas took, one after another."""
        waits = []
        for who in (0, 1, 2):
            for _ in range(10):
                started = time.monotonic()
                await self.take(who, 1, ask())
                waits.append(time.monotonic() - started)
        return waits

    async def take_what_is_free(self) -> int:
        """How many of ten at each of three replicas, asked until some is given, for five seconds at most."""
        took, started = 0, time.monotonic()
        while took == 0 and time.monotonic() - started < 5.0:
            took = sum([await self.take(who, 10, ask()) for who in (0, 1, 2)])
        return took

    def release(self, who: int, count: int) -> None:
        for _ in range(count):
            self.replicas[who].release(self.held[who].pop())

    async def registered(self) -> Weight:
        """What the registry holds, told by a replica that asks for nothing."""
        used = Weight()
        for site in self.sites[:1]:
            raw = await site._redis.hvals(held_key(site, "d"))  # type: ignore[misc]
            for record in raw:
                for requests, tokens in json.loads(record)["g"].values():
                    used = used.plus(Weight(requests, tokens))
        return used


@contextlib.asynccontextmanager
async def fleet(
    valkey: ValkeyServer, prefix: str, count: int = 3, patience: Patience = CALM, settings: LeaseSettings = QUICK
) -> AsyncIterator[Fleet]:
    sites = [SiteValkey("test", SiteAddress(port=valkey.port), prefix, patience) for _ in range(count)]
    stores: list[AdmissionStore] = [ValkeyAdmissionStore(site, settings) for site in sites]
    replicas = [Admission(store, settings) for store in stores]
    tasks = [asyncio.create_task(replica.run()) for replica in replicas]
    tasks += [asyncio.create_task(site.keep_link()) for site in sites]
    await within(5.0, lambda: all(replica.replicas == count for replica in replicas))
    await asyncio.sleep(settings.settle_ms / 1000)
    try:
        yield Fleet(replicas, sites)
    finally:
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for site in sites:
            await site.close()
        assert all(isinstance(each, asyncio.CancelledError) for each in done), done


async def within(seconds: float, happened: Callable[[], bool]) -> float:
    started = time.monotonic()
    while not happened():
        assert time.monotonic() - started < seconds, f"not within {seconds} s"
        await asyncio.sleep(0.005)
    return time.monotonic() - started


def ask(capacity: Capacity = TEN, **changes: object) -> Ask:
    return Ask(**{"deployment": "d", "capacity": capacity, "tenant": "t", "tokens": 10, **changes})  # type: ignore[arg-type]


async def test_in_steady_traffic_hardly_any_request_needs_a_trip(
    shared_valkey: ValkeyServer, request: pytest.FixtureRequest
) -> None:
    async with fleet(shared_valkey, request.node.name, count=2) as replicas:
        admission, site = replicas.replicas[0], replicas.sites[0]
        for _ in range(20):
            grants = [await admission.acquire(ask(HUNDRED)) for _ in range(5)]
            for grant in grants:
                assert isinstance(grant, Grant)
                admission.release(grant)
        before, started = site.trips, time.monotonic()
        for _ in range(1_000):
            grant = await admission.acquire(ask(HUNDRED))
            assert isinstance(grant, Grant)
            admission.release(grant)
        heartbeats = (time.monotonic() - started) * 1000 / QUICK.heartbeat_ms + 2
        assert site.trips - before <= heartbeats + 10, "a thousand requests, a handful of trips"


async def test_three_busy_replicas_never_run_more_than_the_limit_and_end_with_nothing_held(
    shared_valkey: ValkeyServer, request: pytest.FixtureRequest
) -> None:
    async with fleet(shared_valkey, request.node.name) as replicas:
        random = Random(1)
        refused = 0

        async def client(number: int) -> None:
            nonlocal refused
            admission = replicas.replicas[number % 3]
            for _ in range(12):
                # Else a trip that waits 0.1 s for a busy machine is decided without Valkey, on shares and their slack.
                unhurried = TripBudget(time.monotonic(), CALM.request_s)
                answer = await admission.acquire(ask(patience_s=random.choice((0.0, 0.2)), budget=unhurried))
                if isinstance(answer, Refused):
                    refused += 1
                    continue
                replicas.started()
                try:
                    await asyncio.sleep(random.random() / 50)
                finally:
                    replicas.running -= 1
                    admission.release(answer)
                    admission.release(answer)

        clients = [asyncio.create_task(client(number)) for number in range(60)]
        for client_gone in clients[::7]:
            asyncio.get_running_loop().call_later(random.random() / 5, client_gone.cancel)
        await asyncio.gather(*clients, return_exceptions=True)
        assert not any(site.troubles for site in replicas.sites), "Valkey answered all the time"
        assert 5 <= replicas.most <= TEN.limit.requests
        assert refused > 0, "sixty clients at ten places: some must have been refused"
        assert [replica.in_use("d") for replica in replicas.replicas] == [Weight()] * 3
        assert [replica.waiting("d") for replica in replicas.replicas] == [0] * 3
        for _ in range(100):
            if await replicas.registered() == Weight():
                break
            await asyncio.sleep(0.05)
        assert await replicas.registered() == Weight(), "idle headroom goes back too"


async def test_a_waiter_is_served_when_another_replica_releases(
    shared_valkey: ValkeyServer, request: pytest.FixtureRequest
) -> None:
    async with fleet(shared_valkey, request.node.name) as replicas:
        assert await replicas.take(0, 10, ask()) == 10
        waiting = asyncio.create_task(replicas.take(1, 1, ask(patience_s=5.0)))
        await within(1.0, lambda: replicas.replicas[1].waiting("d") == 1)
        await asyncio.sleep(0.1)
        assert not waiting.done()
        replicas.release(0, 1)
        started = time.monotonic()
        assert await waiting == 1
        assert time.monotonic() - started < 1.0


async def test_headroom_of_others_is_called_back_faster_than_the_heartbeat(
    shared_valkey: ValkeyServer, request: pytest.FixtureRequest
) -> None:
    slow_beat = LeaseSettings(settle_ms=200)
    async with fleet(shared_valkey, request.node.name, count=2, settings=slow_beat) as replicas:
        await replicas.take(0, 40, ask(HUNDRED))
        replicas.release(0, 30)
        held = await replicas.registered()
        assert held.requests > 10, "some headroom, or this shows nothing"
        started = time.monotonic()
        assert await replicas.take(1, 80, ask(HUNDRED, patience_s=5.0)) == 80
        assert time.monotonic() - started < 0.9, "a heartbeat is a second"


async def test_patience_ends_the_wait_and_a_client_that_leaves_takes_its_place_along(
    shared_valkey: ValkeyServer, request: pytest.FixtureRequest
) -> None:
    async with fleet(shared_valkey, request.node.name, count=1) as replicas:
        [admission] = replicas.replicas
        await replicas.take(0, 10, ask())
        started = time.monotonic()
        answer = await admission.acquire(ask(patience_s=0.15))
        assert isinstance(answer, Refused)
        assert answer.outcome is Outcome.QUEUE_TIMEOUT
        assert 0.1 < time.monotonic() - started < 0.15 + 2 * BUSY_MACHINE_S
        assert answer.status == 429
        assert 1 <= int(answer.headers()["retry-after"]) <= 6
        assert answer.headers()["x-should-retry"] == "true"
        leaver = asyncio.create_task(admission.acquire(ask(patience_s=5.0)))
        await within(1.0, lambda: admission.waiting("d") == 1)
        leaver.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await leaver
        assert admission.waiting("d") == 0
        assert admission.outcomes[Outcome.ABANDONED] == 1
        batch = await admission.acquire(ask(kind=Kind.BATCH, priority=Priority.BATCH))
        assert isinstance(batch, Refused)
        assert (batch.outcome, batch.should_retry) == (Outcome.NO_CAPACITY, False)


async def test_first_attempts_go_before_retries(shared_valkey: ValkeyServer, request: pytest.FixtureRequest) -> None:
    async with fleet(shared_valkey, request.node.name, count=1) as replicas:
        [admission] = replicas.replicas
        await replicas.take(0, 10, ask())
        retry = asyncio.create_task(admission.acquire(ask(patience_s=5.0, priority=Priority.RETRY)))
        await within(1.0, lambda: admission.waiting("d") == 1)
        first = asyncio.create_task(admission.acquire(ask(patience_s=5.0)))
        await within(1.0, lambda: admission.waiting("d") == 2)
        replicas.release(0, 1)
        assert isinstance(await first, Grant)
        assert not retry.done()
        admission.stop_admitting()
        answer = await retry
        assert isinstance(answer, Refused)
        assert answer.outcome is Outcome.CLOSING


async def test_a_storm_of_leaving_clients_leaves_nothing_behind(
    shared_valkey: ValkeyServer, request: pytest.FixtureRequest
) -> None:
    """Cancelled at every point of a trip: no reply is read by another, nothing stays held, no connection is lost."""
    async with fleet(shared_valkey, request.node.name, count=1) as replicas:
        [admission], [site] = replicas.replicas, replicas.sites
        charges = charges_for("key", 500, 1_000_000, 10)
        finished = 0
        for number in range(300):
            # Each a tenant of its own, so that none finds headroom: all take the trip.
            task = asyncio.create_task(admission.acquire(ask(HUNDRED, tenant=f"t{number}", charges=charges)))
            for _ in range(number % 12):
                await asyncio.sleep(0)
            if number % 3 == 0:
                await asyncio.sleep(0.0003)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                answer = await task
                if isinstance(answer, Grant):
                    admission.release(answer)
                    finished += 1
        await within(2.0, lambda: not site._running)
        assert admission.in_use("d") == Weight()
        assert await replicas.take(0, 80, ask(HUNDRED, tenant="after")) == 80
        assert len(site._redis.connection_pool._in_use_connections) <= 1, "the listener's"
        await admission.leave()
        [level, _] = await ValkeyAdmissionStore(site, QUICK).adjust([each._replace(amount=0) for each in charges])
        assert level >= (500 - finished) * UNITS, "who left is not charged"


# ── Valkey trouble ──


async def test_a_paused_valkey_costs_a_request_at_most_its_budget_and_each_replica_gives_out_its_share(
    own_valkey: ValkeyServer,
) -> None:
    async with fleet(own_valkey, "paused", patience=Patience()) as replicas:
        own_valkey.pause()
        waits = await replicas.waits()
        assert max(waits) < TRIP_BUDGET_S + BUSY_MACHINE_S
        assert sorted(waits)[len(waits) // 2] < 0.01, "once the link is given up, no request waits"
        print(f"slowest {max(waits) * 1000:.0f} ms, median {sorted(waits)[15] * 1000:.2f} ms")
        assert [len(replicas.held[who]) for who in (0, 1, 2)] == [3, 3, 3], "floor(10 / 3)"
        own_valkey.resume()
        await within(5.0, lambda: not any(replica.alone for replica in replicas.replicas))
        await asyncio.sleep(QUICK.settle_ms / 1000 + 0.2)
        took = await replicas.take_what_is_free()
        assert took == 1, "nine of ten are in use"


async def test_a_valkey_that_restarts_empty_does_not_let_anybody_in_twice(own_valkey: ValkeyServer) -> None:
    settling = replace(QUICK, settle_ms=LeaseSettings().settle_ms)
    async with fleet(own_valkey, "killed", patience=Patience(), settings=settling) as replicas:
        await replicas.fill(0, 6)
        await replicas.fill(1, 3)
        own_valkey.kill()
        await within(5.0, lambda: all(replica.alone for replica in replicas.replicas))
        assert await replicas.take(0, 2, ask()) == 0, "more than its share already"
        own_valkey.start()
        took = 0
        started = time.monotonic()
        while time.monotonic() - started < 3.5:
            took += sum([await replicas.take(who, 1, ask()) for who in (0, 1, 2)])
            await asyncio.sleep(0.02)
        assert not any(replica.alone for replica in replicas.replicas)
        # Nine were in use; the third replica may have given out its share of three before the sums were trusted again.
        assert took <= 3
        assert (await replicas.registered()).requests >= 9 + took


async def test_a_full_valkey_goes_on_admitting(own_valkey: ValkeyServer) -> None:
    async with fleet(own_valkey, "full") as replicas:
        with own_valkey.client() as client:
            client.config_set("maxmemory", "1")
        await replicas.fill(0, 10)
        replicas.release(0, 10)
        await replicas.fill(1, 10)
        assert not any(replica.alone for replica in replicas.replicas)


async def test_a_valkey_that_forgot_the_scripts_is_told_again_without_a_failure(own_valkey: ValkeyServer) -> None:
    async with fleet(own_valkey, "noscript", count=1) as replicas:
        for _ in range(3):
            with own_valkey.client() as client:
                client.script_flush()
            assert await replicas.take(0, 1, ask(tenant=str(time.monotonic()))) == 1
        assert replicas.sites[0].link.drops == 0
        assert not replicas.replicas[0].alone


# ── rate limits ──


async def test_a_small_limit_is_exact_across_replicas_and_tells_when_to_come_back(
    shared_valkey: ValkeyServer, request: pytest.FixtureRequest
) -> None:
    async with fleet(shared_valkey, request.node.name) as replicas:
        limited = ask(HUNDRED, charges=charges_for("key", 6, None, 10))
        granted = [await replicas.take(who, 4, limited) for who in (0, 1, 2)]
        assert granted == [4, 2, 0]
        answer = await replicas.replicas[0].acquire(limited)
        assert isinstance(answer, Refused)
        assert answer.outcome is Outcome.REQUEST_LIMIT
        assert 8 <= int(answer.headers()["retry-after"]) <= 11
        values = headers(replicas.replicas[1].limits.views(limited.charges, time.monotonic()))
        assert values["x-ratelimit-limit-requests"] == "6"
        assert values["x-ratelimit-remaining-requests"] == "0"


async def test_a_refused_request_is_not_charged(shared_valkey: ValkeyServer, request: pytest.FixtureRequest) -> None:
    async with fleet(shared_valkey, request.node.name, count=1) as replicas:
        await replicas.take(0, 10, ask())
        limited = ask(charges=charges_for("key", 6, 1_000, 10))
        assert await replicas.take(0, 20, limited) == 0
        replicas.release(0, 10)
        assert await replicas.take(0, 20, limited) == 6


async def test_a_large_limit_is_lent_by_the_second_and_comes_back_at_shutdown(
    shared_valkey: ValkeyServer, request: pytest.FixtureRequest
) -> None:
    async with fleet(shared_valkey, request.node.name, count=2) as replicas:
        admission, other = replicas.replicas
        large = ask(HUNDRED, charges=charges_for("key", 60_000, None, 10))
        assert await replicas.take(0, 20, large) == 20
        replicas.release(0, 20)
        await replicas.take(1, 1, large)
        seen = other.limits.views(large.charges, time.monotonic())[0].remaining
        assert seen <= 60_000 - 20
        trips = replicas.sites[0].trips
        for _ in range(100):
            await replicas.take(0, 1, large)
            replicas.release(0, 1)
        assert replicas.sites[0].trips - trips < 40, "a slice of a thousand serves them"
        store = ValkeyAdmissionStore(replicas.sites[1], QUICK)
        nothing = [large.charges[0]._replace(amount=0)]
        [before] = await store.adjust(nothing)
        await admission.leave()
        [after] = await store.adjust(nothing)
        assert after - before >= 500 * UNITS, "what was left of the slice; a second refills a thousand"


async def test_with_valkey_away_each_replica_gives_out_its_share_of_a_rate(own_valkey: ValkeyServer) -> None:
    async with fleet(own_valkey, "rates", patience=Patience()) as replicas:
        own_valkey.kill()
        limited = ask(HUNDRED, charges=charges_for("key", 6, None, 10))
        assert [await replicas.take(who, 4, limited) for who in (0, 1, 2)] == [2, 2, 2]
        own_valkey.start()
        await within(5.0, lambda: not any(replica.alone for replica in replicas.replicas))


async def test_sites_that_share_a_valkey_have_leases_of_their_own(
    shared_valkey: ValkeyServer, request: pytest.FixtureRequest
) -> None:
    """Else one replica would count as two, and be given half of what is its own."""
    address = SiteAddress(port=shared_valkey.port)
    sites = [SiteValkey(name, address, request.node.name, CALM) for name in ("east", "west")]
    try:
        standings = [
            await ValkeyAdmissionStore(site, QUICK).beat(Replica(site.name, 1, False, 1), {"d": (TEN, {})})
            for site in sites
        ]
        assert [standing.replicas for standing in standings] == [1, 1]
        leases = [await leases_of(site, ["d"]) for site in sites]
        assert [[lease.epoch for lease in each.leases] for each in leases if each] == [["east"], ["west"]]
    finally:
        for site in sites:
            await site.close()
