"""A soak: two replicas under mixed load with clients that leave and deployments that break, for minutes or hours.

    python -m tests.soak --seconds 600 --out benchmarks/results/<date>-soak/soak.json

Sampled every few seconds from outside: resident memory and open files of each replica, its tasks, what it holds. Fails
when memory grows, when a lease, connection or task is left at the end, or when a request was lost or answered twice.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.provenance import ROOT, provenance
from tests.soak.judge import judge
from tests.support.replicas import End, Fleet, Mode, Try, fleet_of
from tests.valkey_server import SentinelSite

SAMPLE_S = 5.0
CLIENTS = 8
MODES = [Mode.OK] * 6 + [Mode.DIES, Mode.BUSY, Mode.GARBAGE, Mode.HANG]
MODE_S = 7.0
LEAVES = 0.2
"""Share of the clients' requests that leave somewhere on the way."""
SETTLED_S = 5.0
"""A deployment notes that it has completed an answer after its last write, by when the client can have it already."""
QUIET_S = 12.0
"""After the load: idle connections are closed, breakers probed, slices given back."""


async def client(fleet: Fleet, until: float, finals: list[Try]) -> int:
    left = 0
    while time.monotonic() < until:
        if random.random() < LEAVES:
            left += 1
            try:
                async with asyncio.timeout(random.random() / 3):
                    await fleet.one_try(random.choice(fleet.replicas))
            except TimeoutError:
                pass
        else:
            finals.append(await fleet.ask())
        await asyncio.sleep(0.02)
    return left


async def break_things(fleet: Fleet, until: float) -> None:
    bad = fleet.fakes[0]
    while time.monotonic() < until - 2 * MODE_S:
        bad.mode = random.choice(MODES)
        await asyncio.sleep(MODE_S)
    bad.mode = Mode.OK


async def sample(fleet: Fleet, started: float) -> list[dict[str, Any]]:
    taken = []
    for replica in fleet.replicas:
        process = psutil.Process(replica.pid)
        taken.append(
            {
                "replica": replica.number,
                "at_s": round(time.monotonic() - started, 1),
                "rss_mib": round(process.memory_info().rss / 2**20, 2),
                "files": process.num_fds(),
                "tasks": await replica.metric(fleet.session, "prime_gateway_tasks"),
                "admitted": await replica.metric(fleet.session, "prime_gateway_admitted_requests"),
                "in_flight": await replica.metric(fleet.session, "prime_gateway_in_flight_requests"),
            }
        )
    return taken


def forget_old(fleet: Fleet, finals: list[Try], totals: dict[str, int]) -> None:
    """Judged and dropped, so that the soak itself stays small. What ended a moment ago waits for the next time."""
    before = time.monotonic() - SETTLED_S
    settled = [final for final in finals if final.ended < before]
    fleet.judge_nothing_lost_or_doubled(settled, but=list(End))
    for final in settled:
        end = f"{final.end} {final.status}" if final.end is End.STATUS else final.end.value
        totals[end] = totals.get(end, 0) + 1
    finals[:] = [final for final in finals if final.ended >= before]
    fleet.tries.clear()
    ended = time.monotonic() - 120.0
    for fake in fleet.fakes:
        fake.arrivals = [each for each in fake.arrivals if each.started > ended]


async def soak(seconds: float, folder: Path) -> dict[str, Any]:
    site = SentinelSite()
    totals: dict[str, int] = {}
    samples: list[dict[str, Any]] = []
    try:
        async with fleet_of(folder, site, limit=40, replicas=2, LOG_LEVEL="error") as fleet:
            started = time.monotonic()
            until = started + seconds
            finals: list[Try] = []
            clients = [asyncio.create_task(client(fleet, until, finals)) for _ in range(CLIENTS)]
            breaking = asyncio.create_task(break_things(fleet, until))
            while time.monotonic() < until:
                await asyncio.sleep(SAMPLE_S)
                samples += await sample(fleet, started)
                forget_old(fleet, finals, totals)
            left = sum(await asyncio.gather(*clients))
            await breaking
            await asyncio.sleep(QUIET_S)
            forget_old(fleet, finals, totals)
            assert not finals, finals
            last = await sample(fleet, started)
            lag_s = round(fleet.lag_s, 3)
    finally:
        site.close()
    return {"seconds": seconds, "ended": totals, "left": left, "longest_lag_s": lag_s, "samples": samples, "last": last}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        result = asyncio.run(soak(options.seconds, Path(folder)))
    result["judged"] = judge(result)
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        sources = sorted((ROOT / "gateway").rglob("*.py"))
        about = provenance(["aiohttp", "fastapi", "redis", "uvicorn", "uvloop"], sources)
        options.out.write_text(json.dumps({"provenance": about, **result}, indent=1) + "\n")
    print(json.dumps({"ended": result["ended"], "left": result["left"], **result["judged"]}, indent=1))
    raise SystemExit(0 if result["judged"]["passed"] else 1)


if __name__ == "__main__":
    main()
