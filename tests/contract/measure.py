"""Prints what the control plane costs on this machine: python -m tests.contract.measure

One process, one Valkey on the same machine. Numbers are medians of several rounds; run it on an idle machine.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

from gateway.admission import Admission, Ask, Capacity, Grant, LeaseSettings, Weight
from gateway.admission.store import Replica
from gateway.admission.valkey_store import ValkeyAdmissionStore
from gateway.breaker import Board, BreakerSettings, Ending
from gateway.ratelimit import charges_for
from gateway.site.valkey_store import SiteAddress, SiteValkey
from tests.valkey_server import ValkeyServer

ROUNDS = 5
SETTINGS = LeaseSettings()
CAPACITY = Capacity(Weight(400, 40_000_000), {"gold": Weight(40, 4_000_000)})


async def median(rounds: Callable[[], Awaitable[float]]) -> float:
    return statistics.median([await rounds() for _ in range(ROUNDS)])


async def admitted_and_released(admission: Admission, ask: Ask, count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        grant = await admission.acquire(ask)
        assert isinstance(grant, Grant)
        admission.limits.settle(ask.charges, 90)
        admission.release(grant)
    return (time.perf_counter() - started) / count


async def together(admission: Admission, ask: Ask, clients: int, count: int) -> float:
    started = time.perf_counter()
    await asyncio.gather(*(admitted_and_released(admission, ask, count) for _ in range(clients)))
    return clients * count / (time.perf_counter() - started)


async def crowded_trip(site: SiteValkey, replicas: int, accounts: int) -> float:
    """One acquire at a deployment where many replicas hold capacity for many accounts."""
    store = ValkeyAdmissionStore(site, SETTINGS)
    gauges = {f"tenant{number}": Weight(1, 100) for number in range(accounts)}
    big = Capacity(Weight(1_000_000, 1_000_000_000))
    for number in range(replicas):
        await store.beat(Replica(f"epoch{number}", 1, False, replicas), {"crowded": (big, gauges)})
    times = []
    for seq in range(200):
        started = time.perf_counter()
        await store.acquire(Replica("epoch0", 2 + seq, True, replicas), "crowded", big, gauges, [], 0.1)
        times.append(time.perf_counter() - started)
        if seq % 50 == 0:
            for number in range(1, replicas):
                await store.beat(Replica(f"epoch{number}", 2 + seq, True, replicas), {})
    return statistics.median(times)


async def main() -> None:
    server = ValkeyServer().start()
    site = SiteValkey("measured", SiteAddress(port=server.port))
    ask = Ask("d", CAPACITY, "tenant", tokens=100, charges=charges_for("key", 10_000_000, 1_000_000_000, 100))
    plain = Ask("d", CAPACITY, "tenant", tokens=100)
    quick = Admission(ValkeyAdmissionStore(site, SETTINGS), SETTINGS)
    forced = Admission(ValkeyAdmissionStore(site, SETTINGS), SETTINGS, headroom=False)
    background = [asyncio.create_task(each.run()) for each in (quick, forced)]
    await asyncio.sleep(2.5)
    await together(quick, ask, 8, 200)
    board = Board(BreakerSettings())
    peers = ("d", "e")

    async def breaker() -> float:
        started = time.perf_counter()
        for number in range(10_000):
            board.report(board.permit("d", peers, number / 1e4, 0.5), Ending.SUCCEEDED)
        return (time.perf_counter() - started) / 10_000

    print(f"breaker: permit and report            {await median(breaker) * 1e6:8.1f} us")
    hot = await median(lambda: admitted_and_released(quick, ask, 2_000))
    print(f"admission, rate limits, from headroom {hot * 1e6:8.1f} us a request")
    one = await median(lambda: admitted_and_released(forced, plain, 300))
    print(f"admission, trip forced, one by one    {one * 1e6:8.1f} us a request")
    for clients in (8, 64):
        rate = await median(lambda clients=clients: together(forced, plain, clients, 60))  # type: ignore[misc]
        print(f"admission, trip forced, {clients:3d} clients    {rate:8.0f} requests/s")
    for replicas, accounts in ((3, 10), (20, 20), (20, 100)):
        took = await crowded_trip(site, replicas, accounts)
        print(f"trip, {replicas} replicas x {accounts} accounts {took * 1e6:12.0f} us")
    for task in background:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)
    await site.close()
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
