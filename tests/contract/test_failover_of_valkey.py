"""The primary dies, Sentinel makes its replica the primary: admission and breakers go on, nobody gets in twice."""

import asyncio
import time
from collections.abc import Iterator

import msgspec
import pytest

from gateway.admission import Admission, Ask, Capacity, Grant, LeaseSettings, Weight
from gateway.admission.valkey_store import ValkeyAdmissionStore
from gateway.breaker import BreakerSettings, Ending, SharedBreakers, State
from gateway.breaker.valkey_store import ValkeyBreakerStore
from gateway.site.valkey_store import SiteValkey
from tests.valkey_server import SentinelSite

LIMIT = 12


@pytest.fixture
def failing_over() -> Iterator[SentinelSite]:
    site = SentinelSite()
    yield site
    site.close()


@pytest.mark.slow
async def test_after_a_failover_leases_breakers_and_limits_hold(failing_over: SentinelSite) -> None:
    settings = LeaseSettings()
    sites = [SiteValkey("test", failing_over.address()) for _ in range(3)]
    replicas = [Admission(ValkeyAdmissionStore(site, settings), settings) for site in sites]

    async def probe(_deployment: str) -> Ending:
        return Ending.SUCCEEDED

    long = BreakerSettings(cooldown_ms=60_000)
    breakers = SharedBreakers(ValkeyBreakerStore(sites[0], long), long, lambda: ["d"], probe)
    background = (*(each.run() for each in replicas), *(each.keep_link() for each in sites), breakers.run())
    tasks = [asyncio.create_task(each) for each in background]
    try:
        await asyncio.sleep(2.5)
        ask = Ask("d", Capacity(Weight(LIMIT, 1_000_000)), "t", tokens=1)
        running: list[list[Grant]] = [[], [], []]

        async def take(who: int, count: int, patience_s: float = 0.0) -> int:
            each = msgspec.structs.replace(ask, patience_s=patience_s)
            answers = await asyncio.gather(*(replicas[who].acquire(each) for _ in range(count)))
            granted = [each for each in answers if isinstance(each, Grant)]
            running[who] += granted
            return len(granted)

        assert [await take(who, 4, patience_s=10.0) for who in (0, 1, 2)] == [4, 4, 4]
        for _ in range(5):
            breakers.report(breakers.permit("d", ["d", "e"]), Ending.CONNECT_FAILED)
        await asyncio.sleep(0.5)
        failing_over.primary.kill()
        started = time.monotonic()
        longest = 0.0
        # All twelve run on; the shares are four each, so nobody may get one more, before, during or after.
        while time.monotonic() - started < 2.0 or any(replica.alone for replica in replicas):
            assert time.monotonic() - started < 30.0, "not back on the new primary"
            asked = time.monotonic()
            assert [await take(who, 1) for who in (0, 1, 2)] == [0, 0, 0]
            longest = max(longest, time.monotonic() - asked)
            await asyncio.sleep(0.05)
        back_s = time.monotonic() - started
        assert breakers.board.states("d")["d"] is State.OPEN
        replicas[0].release(running[0].pop())
        await asyncio.sleep(1.5)
        assert await take(1, 2, patience_s=0.5) == 1
        print(
            f"all back {back_s:.1f} s after kill -9 of the primary; slowest round of three asks {longest * 1000:.0f} ms"
        )
    finally:
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for site in sites:
            await site.close()
    assert all(isinstance(each, asyncio.CancelledError) for each in done), done
