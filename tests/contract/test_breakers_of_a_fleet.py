"""Several replicas' breakers on one store, in real time."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field

import pytest

from gateway.breaker import BreakerSettings, Ending, SharedBreakers, State
from gateway.breaker.board import Source, Verdict
from gateway.breaker.store import BreakerStore
from gateway.breaker.valkey_store import ValkeyBreakerStore
from gateway.site.valkey_store import SiteAddress, SiteValkey
from tests.valkey_server import ValkeyServer

DEPLOYMENTS = ("a", "b")
QUICK = BreakerSettings(cooldown_ms=300, jitter_percent=0, probe_hold_ms=400, ramp_step_ms=50)
CONVERGENCE_S = 1.0
"""The promise: every replica knows a transition within this."""


@dataclass
class Upstream:
    """Answers probes; counts them as they arrive, which is the judge of `one at a time`."""

    ending: Ending = Ending.SUCCEEDED
    takes_s: float = 0.05
    running: int = 0
    most_at_once: int = 0
    probes: list[str] = field(default_factory=list)

    async def probe(self, deployment: str) -> Ending:
        self.probes.append(deployment)
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self.running -= 1
        return self.ending


class Deaf(ValkeyBreakerStore):
    """Loses every push."""

    async def listen(self, on_change: Callable[[str], None]) -> None:
        await asyncio.Event().wait()


@dataclass
class Fleet:
    replicas: list[SharedBreakers]
    sites: list[SiteValkey]
    upstream: Upstream

    def fail(self, replica: int, deployment: str, times: int, ending: Ending = Ending.CONNECT_FAILED) -> None:
        for _ in range(times):
            breakers = self.replicas[replica]
            breakers.report(breakers.permit(deployment, DEPLOYMENTS), ending)

    def states(self, deployment: str) -> set[State]:
        return {replica.board.states([deployment])[deployment] for replica in self.replicas}


@contextlib.asynccontextmanager
async def fleet(
    valkey: ValkeyServer,
    prefix: str,
    count: int = 3,
    store: type[ValkeyBreakerStore] = ValkeyBreakerStore,
    settings: BreakerSettings = QUICK,
) -> AsyncIterator[Fleet]:
    upstream = Upstream()
    sites = [SiteValkey("test", SiteAddress(port=valkey.port), prefix=prefix) for _ in range(count)]
    stores: list[BreakerStore] = [store(site, settings) for site in sites]
    replicas = [SharedBreakers(each, settings, lambda: DEPLOYMENTS, upstream.probe) for each in stores]
    tasks = [asyncio.create_task(replica.run()) for replica in replicas]
    tasks += [asyncio.create_task(site.keep_link()) for site in sites]
    await asyncio.sleep(0.1)
    try:
        yield Fleet(replicas, sites, upstream)
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


LONG = BreakerSettings(jitter_percent=0)


@pytest.mark.parametrize("store", [ValkeyBreakerStore, Deaf], ids=["pushed", "push lost"])
async def test_every_replica_learns_of_a_trip_within_a_second(
    shared_valkey: ValkeyServer, store: type[ValkeyBreakerStore], request: pytest.FixtureRequest
) -> None:
    async with fleet(shared_valkey, request.node.name, store=store, settings=LONG) as replicas:
        replicas.fail(0, "a", 5)
        took = await within(CONVERGENCE_S, lambda: replicas.states("a") == {State.OPEN})
        assert replicas.states("b") == {State.CLOSED}
        print(f"converged in {took * 1000:.0f} ms")


async def test_failures_seen_by_different_replicas_add_up(
    shared_valkey: ValkeyServer, request: pytest.FixtureRequest
) -> None:
    async with fleet(shared_valkey, request.node.name, settings=LONG) as replicas:
        for replica, times in ((0, 2), (1, 2), (2, 1)):
            replicas.fail(replica, "a", times)
        await within(CONVERGENCE_S, lambda: replicas.states("a") == {State.OPEN})


async def test_one_probe_at_a_time_in_the_whole_fleet_closes_it_again(
    shared_valkey: ValkeyServer, request: pytest.FixtureRequest
) -> None:
    async with fleet(shared_valkey, request.node.name, count=5) as replicas:
        replicas.fail(0, "a", 5)
        await within(CONVERGENCE_S, lambda: replicas.states("a") == {State.OPEN})
        await within(5.0, lambda: replicas.states("a") == {State.CLOSED})
        assert replicas.upstream.most_at_once == 1
        assert replicas.upstream.probes == ["a"] * QUICK.probe_passes


async def test_a_probe_that_hangs_reopens_it_and_is_bounded(
    shared_valkey: ValkeyServer, request: pytest.FixtureRequest
) -> None:
    async with fleet(shared_valkey, request.node.name) as replicas:
        replicas.upstream.takes_s = 60.0
        replicas.fail(0, "a", 5)
        await within(CONVERGENCE_S, lambda: replicas.states("a") == {State.OPEN})
        await within(2.0, lambda: replicas.states("a") == {State.HALF_OPEN})
        await within(2.0, lambda: replicas.states("a") == {State.OPEN})
        replicas.upstream.takes_s = 0.0
        await within(5.0, lambda: replicas.states("a") == {State.CLOSED})


@pytest.fixture
def frozen(own_valkey: ValkeyServer) -> Iterator[ValkeyServer]:
    yield own_valkey
    own_valkey.resume()


async def test_a_paused_valkey_leaves_open_breakers_open_and_each_replica_goes_on_alone(
    frozen: ValkeyServer,
) -> None:
    async with fleet(frozen, "paused", settings=LONG) as replicas:
        replicas.fail(0, "a", 5)
        await within(CONVERGENCE_S, lambda: replicas.states("a") == {State.OPEN})
        frozen.pause()
        await within(3.0, lambda: {each.source for each in replicas.replicas} == {Source.LOCAL})
        assert replicas.states("a") == {State.OPEN}, "fail-static"
        assert replicas.replicas[1].permit("b", DEPLOYMENTS).verdict is Verdict.CLOSED
        replicas.fail(1, "b", 5)
        await within(1.0, lambda: replicas.replicas[1].board.states("b")["b"] is State.OPEN)
        assert replicas.replicas[2].board.states("b")["b"] is State.CLOSED, "nothing is shared now"
        frozen.resume()
        await within(3.0, lambda: {each.source for each in replicas.replicas} == {Source.SHARED})
        assert replicas.states("a") == {State.OPEN}


async def test_a_valkey_that_restarts_empty_gets_the_open_breaker_back_from_the_copies(
    own_valkey: ValkeyServer,
) -> None:
    async with fleet(own_valkey, "restart", settings=LONG) as replicas:
        replicas.fail(0, "a", 5)
        await within(CONVERGENCE_S, lambda: replicas.states("a") == {State.OPEN})
        own_valkey.kill()
        await within(3.0, lambda: {each.source for each in replicas.replicas} == {Source.LOCAL})
        own_valkey.start()
        await within(3.0, lambda: {each.source for each in replicas.replicas} == {Source.SHARED})
        store = ValkeyBreakerStore(replicas.sites[0], LONG)
        await asyncio.sleep(0.6)
        assert (await store.read(["a"]))["a"].state is State.OPEN
        assert replicas.states("a") == {State.OPEN}
