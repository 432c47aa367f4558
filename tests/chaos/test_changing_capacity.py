"""Bringing capacity in and moving it, by the admin API, with three replicas under load. Judged by the fakes' arrivals."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.replicas import End, Fleet, Try, fleet_of
from tests.valkey_server import SentinelSite, ValkeyServer

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

PLENTY = 60
OBEYED_S = 1.0
"""Replicas look each 0.2 s here."""


@pytest.fixture(scope="module")
def site() -> Iterator[SentinelSite]:
    site = SentinelSite()
    yield site
    site.close()


def rewrite(fleet: Fleet, number: int, sites: Iterable[dict[str, object]] = (), **changes: object) -> None:
    """One deployment's entry in the fleet file, and further sites."""
    path = fleet.folder / "fleet.yaml"
    written = yaml.safe_load(path.read_text())
    written["deployments"][number] |= changes
    written["sites"] += sites
    partial = path.with_name("fleet.partial")
    partial.write_text(yaml.safe_dump(written))
    partial.replace(path)


def shares(fleet: Fleet, since: float) -> list[int]:
    return [len(fake.real(since)) for fake in fleet.fakes]


async def whole(fleet: Fleet, loading: "asyncio.Task[list[Try]]") -> int:
    finals = await loading
    fleet.judge_nothing_lost_or_doubled(finals)
    assert {each.end for each in fleet.tries} == {End.COMPLETE}, "a client noticed"
    return len(finals)


async def test_an_overflow_deployment_is_brought_in_by_a_weight_ramp_and_no_client_notices(
    tmp_path: Path, site: SentinelSite
) -> None:
    async with fleet_of(tmp_path, site, limit=PLENTY) as fleet:
        _, burst = fleet.fakes
        rewrite(fleet, 1, overflow=True)
        await asyncio.sleep(OBEYED_S)
        began = time.monotonic()
        loading = asyncio.create_task(fleet.load(clients=9, seconds=14))
        await asyncio.sleep(3)
        assert shares(fleet, began)[1] == 0, "overflow takes nothing that another can"
        done = await fleet.order(action="probe", deployment=burst.name)
        assert done["detail"] == "probe: succeeded"
        await fleet.order(
            action="weight", deployment=burst.name, weight=1.0, start=0.05, ramp_seconds=6, overflow=False
        )
        ordered = time.monotonic()
        await asyncio.sleep(8)
        answered = await whole(fleet, loading)
        arrivals = [each.started for each in burst.real(ordered)]
        thirds = [sum(ordered + 2 * n <= at < ordered + 2 * (n + 1) for at in arrivals) for n in range(4)]
        all_of = [len(each.real(ordered + 2 * 3)) for each in fleet.fakes]
        print(f"{answered} answered; to the new one each two seconds {thirds}; afterwards {all_of} to both")
        assert thirds[0] < thirds[3]
        assert 0.25 < all_of[1] / sum(all_of) < 0.75, "half of the sessions in the end"


async def test_a_deployment_moves_to_another_site_and_no_client_notices(tmp_path: Path, site: SentinelSite) -> None:
    west = ValkeyServer().start()
    try:
        async with fleet_of(tmp_path, site, limit=PLENTY) as fleet:
            former, successor = fleet.fakes
            there = {"name": "west", "valkey": {"address": f"127.0.0.1:{west.port}"}}
            rewrite(fleet, 1, [there], site="west", weight=0.05)
            await asyncio.sleep(OBEYED_S + 1)
            loading = asyncio.create_task(fleet.load(clients=9, seconds=12))
            await asyncio.sleep(2)
            await fleet.order(action="weight", deployment=successor.name, weight=1.0, ramp_seconds=3)
            await asyncio.sleep(4)
            await fleet.order(action="drain_site", site="local")
            drained = time.monotonic()
            answered = await whole(fleet, loading)
            last = max(each.started for each in former.real()) - drained
            print(f"{answered} answered; the last request came to the former {last:.2f} s after its site was drained")
            assert last < OBEYED_S + 4 * fleet.lag_s
            assert former.real()
            assert len(successor.real(drained + OBEYED_S)) > 10
            assert all(each.ended < float("inf") for each in former.real()), "what ran there ended"
    finally:
        west.close()


async def test_orders_outlive_a_failover_of_valkey_and_reach_every_replica(tmp_path: Path) -> None:
    own = SentinelSite()
    try:
        async with fleet_of(tmp_path, own, limit=PLENTY) as fleet:
            leaving, _ = fleet.fakes
            loading = asyncio.create_task(fleet.load(clients=6, seconds=12))
            await asyncio.sleep(1)
            await fleet.order(action="drain", deployment=leaving.name)
            await asyncio.sleep(OBEYED_S)
            calm = time.monotonic()
            own.primary.kill()
            await asyncio.sleep(6)
            await fleet.order(replica=2, action="undrain", deployment=leaving.name)
            undrained = time.monotonic()
            answered = await whole(fleet, loading)
            during = [each for each in leaving.real(calm) if each.started < undrained]
            print(f"{answered} answered; {len(during)} reached the drained one while Valkey failed over")
            assert during == []
            assert leaving.real(undrained)
    finally:
        own.close()
