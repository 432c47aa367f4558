"""Three gateway replicas as processes, one site's Valkey with Sentinel, fake deployments: what holds while things break.

Judged by what the fakes and the clients saw. Times are printed; bounds leave room for a crowded machine of two cores.
"""

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.replicas import End, Fleet, Mode, Try, fleet_of, most_at_once
from tests.valkey_server import SentinelSite

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

LIMIT = 6
SETTLED_S = 2.5
"""A site that has heard of nobody for a while gives each replica its share only, for two seconds."""


@pytest.fixture(scope="module")
def site() -> Iterator[SentinelSite]:
    """Shared: Sentinel takes ten seconds to know a replica. Each fleet has names of its own in it."""
    site = SentinelSite()
    yield site
    site.close()


@pytest.fixture
def own_site() -> Iterator[SentinelSite]:
    site = SentinelSite()
    yield site
    site.close()


def overhead_ms(fleet: Fleet, tries: list[Try]) -> list[float]:
    """From the client's send to the arrival at a deployment, of those that were admitted; sorted."""
    arrived = {each.request_id: each.started for fake in fleet.fakes for each in reversed(fake.real())}
    return sorted((arrived[each.request_id] - each.sent) * 1000 for each in tries if each.request_id in arrived)


def slack(troubles: int) -> int:
    """None while Valkey answers; each trip without an answer may admit one on a replica's share."""
    return min(troubles, LIMIT)


def lags(fleet: Fleet) -> float:
    """Seconds that a report, a push or a poll and the answer may be late because nobody ran: a few milliseconds each on
    a machine that is free."""
    return 4 * fleet.lag_s


async def hold_all(fleet: Fleet, replica: int, count: int) -> list[asyncio.Task[Try]]:
    """`count` long streams through one replica, all of them running."""
    before = sum(len(fake.real()) for fake in fleet.fakes)
    tasks = [asyncio.create_task(fleet.one_try(fleet.replicas[replica])) for _ in range(count)]
    async with asyncio.timeout(10):
        while sum(len(fake.real()) for fake in fleet.fakes) < before + count:
            await asyncio.sleep(0.02)
    return tasks


async def test_under_more_load_than_fits_every_limit_holds_and_every_request_is_answered_once(
    tmp_path: Path, site: SentinelSite
) -> None:
    async with fleet_of(tmp_path, site, limit=LIMIT) as fleet:
        await asyncio.sleep(SETTLED_S)
        finals = await fleet.load(clients=30, seconds=6)
        fleet.judge_nothing_lost_or_doubled(finals)
        most = [fake.most_at_once() for fake in fleet.fakes]
        refused = sum(each.status == 429 for each in fleet.tries)
        troubles = await fleet.valkey_troubles()
        print(f"{len(finals)} answered, {refused} refused with 429; at most {most} at once of {LIMIT} each, ")
        print(f"{troubles} trips without an answer")
        assert max(most) <= LIMIT + slack(troubles)
        assert min(most) >= LIMIT - 1, "capacity lay idle under load"


async def test_a_killed_replica_gives_its_capacity_back_within_five_seconds(tmp_path: Path, site: SentinelSite) -> None:
    async with fleet_of(tmp_path, site, limit=LIMIT, deployments=1) as fleet:
        (fake,) = fleet.fakes
        fake.seconds = 60.0
        await asyncio.sleep(SETTLED_S)
        held = await hold_all(fleet, 0, LIMIT)
        assert (await fleet.one_try(fleet.replicas[1])).status == 429
        fleet.replicas[0].signal(signal.SIGKILL)
        killed = time.monotonic()
        fake.seconds = 0.2
        assert {each.end for each in await asyncio.gather(*held)} == {End.BROKEN}
        while (final := await fleet.one_try(fleet.replicas[1])).end is not End.COMPLETE:
            assert final.status == 429
            assert time.monotonic() - killed < 15
        back_s = time.monotonic() - killed
        print(f"capacity back {back_s:.1f} s after kill -9")
        assert back_s < 5.0 + fake.seconds + lags(fleet)
        finals = await fleet.load(clients=15, seconds=2)
        fleet.judge_nothing_lost_or_doubled(finals)
        del fleet.replicas[0]
        troubles = await fleet.valkey_troubles()
        assert fake.most_at_once() <= LIMIT + slack(troubles)


async def test_a_replica_paused_past_its_lease_admits_nothing_until_the_sum_fits(
    tmp_path: Path, site: SentinelSite
) -> None:
    async with fleet_of(tmp_path, site, limit=LIMIT, deployments=1) as fleet:
        (fake,) = fleet.fakes
        fake.seconds = 10.0
        await asyncio.sleep(SETTLED_S)
        held = await hold_all(fleet, 0, LIMIT)
        fleet.replicas[0].signal(signal.SIGSTOP)
        await asyncio.sleep(5.5)
        fake.seconds = 6.0
        others = await hold_all(fleet, 1, LIMIT)
        fleet.replicas[0].signal(signal.SIGCONT)
        answers = [await fleet.one_try(fleet.replicas[0]) for _ in range(3)]
        assert [each.status for each in answers] == [429] * 3
        fleet.judge_nothing_lost_or_doubled([*await asyncio.gather(*held), *await asyncio.gather(*others)])
        most = fake.most_at_once()
        print(f"at most {most} at once: the limit of {LIMIT} and {LIMIT} that the paused replica still ran")
        assert most <= 2 * LIMIT
        fake.seconds = 0.2
        await asyncio.sleep(1.5)
        after = time.monotonic()
        fleet.judge_nothing_lost_or_doubled(await fleet.load(clients=15, seconds=2))
        assert fake.most_at_once(after) <= LIMIT + slack(await fleet.valkey_troubles())


PLENTY = 60


@pytest.mark.parametrize(
    ("trouble", "limit"), [("killed", LIMIT), ("paused", LIMIT), ("killed", PLENTY), ("paused", PLENTY)]
)
async def test_valkey_in_trouble_costs_a_tenth_of_a_second_and_no_request(
    tmp_path: Path, own_site: SentinelSite, trouble: str, limit: int
) -> None:
    async with fleet_of(tmp_path, own_site, limit=limit) as fleet:
        await asyncio.sleep(SETTLED_S)
        calm = await fleet.load(clients=9, seconds=2)
        began = time.monotonic()
        loading = asyncio.create_task(fleet.load(clients=9, seconds=8))
        if trouble == "killed":
            own_site.primary.kill()
        else:
            own_site.primary.pause()
            await asyncio.sleep(3)
            own_site.primary.resume()
        finals = await loading
        fleet.judge_nothing_lost_or_doubled([*calm, *finals])
        before, during = overhead_ms(fleet, calm), overhead_ms(fleet, finals)
        p99 = [times[int(len(times) * 0.99)] for times in (before, during)]
        most = [fake.most_at_once(began) for fake in fleet.fakes]
        print(f"Valkey {trouble}: {len(finals)} answered; from client to deployment p99 {p99[0]:.0f} ms before, ")
        print(f"{p99[1]:.0f} ms during, longest {during[-1]:.0f} ms; at most {most} at once of {limit} each")
        # On top of what ran before come the shares; traffic is spread evenly here, so that is the limit again.
        assert max(most) <= 2 * limit
        if limit == PLENTY:
            # Where nobody waits in line for capacity, what is added is Valkey's trouble alone.
            assert p99[1] - p99[0] < 100 + 1000 * lags(fleet)


@pytest.mark.parametrize("mode", [Mode.HANG, Mode.GARBAGE])
async def test_a_broken_deployment_is_left_by_all_replicas_within_a_second_and_found_again(
    tmp_path: Path, site: SentinelSite, mode: Mode
) -> None:
    async with fleet_of(tmp_path, site, limit=100) as fleet:
        bad, good = fleet.fakes
        await asyncio.sleep(0.5)
        bad.mode = mode
        broken = time.monotonic()
        finals = await fleet.load(clients=9, seconds=4)
        fleet.judge_nothing_lost_or_doubled(finals)
        # The fifth failure trips it: a hanging one fails when its first event is due, a second after it came.
        fifth = sorted(each.ended for each in bad.real(broken))[4]
        late = bad.real(fifth + 1.0 + lags(fleet))
        print(f"(longest lag {fleet.lag_s * 1000:.0f} ms)")
        print(
            f"{mode}: {len(finals)} answered; {len(bad.real(broken))} reached it, {len(late)} a second after the fifth"
        )
        assert late == []
        bad.mode = Mode.OK
        healed = time.monotonic()
        while not [each for each in bad.real(healed) if each.completed]:
            assert time.monotonic() - healed < 30, "not found again"
            fleet.judge_nothing_lost_or_doubled(await fleet.load(clients=6, seconds=0.5))
        probes = [each for each in bad.arrivals if each.is_probe]
        print(f"back {time.monotonic() - healed:.1f} s after it healed, {len(probes)} probes of three replicas")
        assert most_at_once(probes) == 1, "two probes at once"
        assert len(good.real()) > len(bad.real())


async def test_a_deployment_that_dies_in_mid_stream_costs_error_events_and_never_a_second_answer(
    tmp_path: Path, site: SentinelSite
) -> None:
    async with fleet_of(tmp_path, site, limit=100) as fleet:
        bad, _ = fleet.fakes
        bad.mode = Mode.DIES
        # Longer than the first cooldown: its probes begin to be answered too, and must not let it back.
        finals = await fleet.load(clients=9, seconds=9)
        fleet.judge_nothing_lost_or_doubled(finals, but=[End.ERROR_EVENT])
        told = [each for each in finals if each.end is End.ERROR_EVENT]
        arrived = {each.request_id for each in bad.real()}
        print(f"{len(finals)} requests, {len(told)} ended with an error event, {len(arrived)} reached the dying one")
        assert {each.request_id for each in told} == arrived
        fifth = sorted(each.ended for each in bad.real())[4]
        assert bad.real(fifth + 1.0 + lags(fleet)) == [], "the breaker did not open everywhere, or closed again"
        probes = [each for each in bad.arrivals if each.is_probe]
        print(f"{len(probes)} probes of it died as well")
        assert probes


async def test_a_busy_deployment_is_passed_over_and_its_breaker_stays_closed(
    tmp_path: Path, site: SentinelSite
) -> None:
    async with fleet_of(tmp_path, site, limit=100, replicas=1) as fleet:
        busy, _ = fleet.fakes
        busy.mode = Mode.BUSY
        fleet.judge_nothing_lost_or_doubled(await fleet.load(clients=6, seconds=2))
        assert len(busy.real()) > 5, "five failures in a row would have opened it"
        assert not [each for each in busy.arrivals if each.is_probe]
        for fake in fleet.fakes:
            fake.mode = Mode.BUSY
        assert (await fleet.one_try(fleet.replicas[0])).status == 429


async def test_draining_a_deployment_under_load_costs_no_client_anything(tmp_path: Path, site: SentinelSite) -> None:
    async with fleet_of(tmp_path, site, limit=100) as fleet:
        leaving, _ = fleet.fakes
        loading = asyncio.create_task(fleet.load(clients=9, seconds=4))
        await asyncio.sleep(1)
        (tmp_path / "fleet.yaml").write_text("models: [")
        await asyncio.sleep(1)
        fleet.write(draining=[leaving.name])
        drained = time.monotonic()
        finals = await loading
        fleet.judge_nothing_lost_or_doubled(finals)
        assert {each.end for each in fleet.tries} == {End.COMPLETE}
        last = max(each.started for each in leaving.real()) - drained
        print(f"{len(finals)} answered; the last request came to it {last:.2f} s after the file was written")
        assert last < 1.0 + lags(fleet)
        assert leaving.real()


async def test_a_rolling_restart_under_load_cuts_no_stream(tmp_path: Path, site: SentinelSite) -> None:
    async with fleet_of(tmp_path, site, limit=20) as fleet:
        for fake in fleet.fakes:
            fake.seconds = 1.0
        done = asyncio.Event()
        finals: list[Try] = []

        async def client() -> None:
            while not done.is_set():
                finals.append(await fleet.ask())

        clients = [asyncio.create_task(client()) for _ in range(12)]
        for replica in fleet.replicas:
            replica.signal(signal.SIGTERM)
            assert await replica.ended(within_s=30) == 0
            replica.launch()
            await replica.ready(fleet.session)
        done.set()
        await asyncio.gather(*clients)
        fleet.judge_nothing_lost_or_doubled(finals)
        cut = [each for each in fleet.tries if each.began is not None and each.end is not End.COMPLETE]
        elsewhere = len(fleet.tries) - len(finals)
        print(f"{len(finals)} answered over three restarts, {elsewhere} tries sent elsewhere, {len(cut)} cut")
        assert cut == []
