"""A gateway replica reduced to its admission, as a process of its own: commands on stdin, one JSON line each on stdout.

take N      N requests at once, without patience -> how many were granted
release N   the oldest N
churn S     requests of random length for S seconds -> [start, end] of each that was admitted, by the system's clock
state       in use, replicas known, leases lost, whether it is alone, trips without an answer
"""

import asyncio
import json
import random
import sys
import time
from contextlib import suppress
from dataclasses import asdict

import msgspec

from gateway.admission import Admission, Ask, Capacity, Grant, LeaseSettings, Weight
from gateway.admission.valkey_store import ValkeyAdmissionStore
from gateway.site.trip_budget import Patience, TripBudget
from gateway.site.valkey_store import SiteAddress, SiteValkey

UNHURRIED_S = 2.0
"""For a trip under churn: one that a crowded machine delays is decided without Valkey after production's 45 ms, on shares and
their slack, and how many run at once says nothing then."""


async def commands() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def churn(admission: Admission, ask: Ask, seconds: float) -> list[tuple[float, float]]:
    """Times are taken inside the grant: admitted before the start, released after the end."""
    ran: list[tuple[float, float]] = []
    until = time.monotonic() + seconds

    async def client() -> None:
        while time.monotonic() < until:
            budget = TripBudget(time.monotonic(), UNHURRIED_S)
            patient = msgspec.structs.replace(ask, patience_s=random.choice((0.0, 0.1)), budget=budget)
            answer = await admission.acquire(patient)
            if isinstance(answer, Grant):
                started = time.monotonic()
                await asyncio.sleep(random.random() / 20)
                ran.append((started, time.monotonic()))
                admission.release(answer)
            else:
                await asyncio.sleep(0.01)

    await asyncio.gather(*(client() for _ in range(15)))
    return ran


async def main(port: int, limit: int) -> None:
    settings = LeaseSettings()
    site = SiteValkey("test", SiteAddress(port=port), prefix="processes", patience=Patience(UNHURRIED_S))
    admission = Admission(ValkeyAdmissionStore(site, settings), settings)
    ask = Ask("d", Capacity(Weight(limit, 1_000_000)), "tenant", tokens=10)
    running: list[Grant] = []
    tasks = [asyncio.create_task(admission.run()), asyncio.create_task(site.keep_link())]
    reader = await commands()
    print(json.dumps(asdict(settings)), flush=True)
    while line := (await reader.readline()).decode().split():
        answer: object = None
        match line:
            case ["take", count]:
                answers = await asyncio.gather(*(admission.acquire(ask) for _ in range(int(count))))
                granted = [each for each in answers if isinstance(each, Grant)]
                running += granted
                answer = len(granted)
            case ["release", count]:
                for grant in running[: int(count)]:
                    admission.release(grant)
                del running[: int(count)]
            case ["churn", seconds]:
                answer = await churn(admission, ask, float(seconds))
            case ["state"]:
                answer = {
                    "in_use": admission.in_use("d").requests,
                    "replicas": admission.replicas,
                    "leases_lost": admission.leases_lost,
                    "alone": admission.alone,
                    "settling": admission.settling,
                    "troubles": sum(site.troubles.values()),
                }
            case ["leave"]:
                await admission.leave()
        print(json.dumps(answer), flush=True)
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    await site.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
