"""A site's Valkey that is full (maxmemory reached, noeviction): two replicas in one process, a real Valkey between them.

As shipped, the scripts that keep breakers, leases and limits may run on a full Valkey, so nothing changes but that settle
records wait. Where a Valkey refuses them all the same, the replicas go on alone, and come back without a flood.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from redis.exceptions import OutOfMemoryError

from gateway.admission import valkey_store as admission_store
from gateway.breaker import valkey_store as breaker_store
from gateway.metering.settle_store import STREAM
from gateway.site import valkey_store as site_store
from gateway.site.valkey_store import SCRIPT_HEADER, Script
from tests.gateway.test_relay import CHAT, UNARY
from tests.support.gateway import RunningGateway, gateway
from tests.support.lag import Lag, lag_watched
from tests.support.upstream import Upstream, upstream
from tests.valkey_server import ValkeyServer

pytestmark = pytest.mark.slow

LIMIT = 4
CLIENTS = 10
"""More than fit: the limit is met."""
FEW = 2
"""Nobody waits for capacity, also on half of the limit: what is added to an answer is Valkey's doing."""
TRIP_BUDGET_S = 0.1
SETTLED_S = 2.5


@dataclass
class Pair:
    valkey: ValkeyServer
    up: Upstream
    replicas: list[RunningGateway]
    lag: Lag
    most_at_once: int = 0
    failing: bool = False
    answered: int = 0
    turns: "itertools.cycle[RunningGateway]" = field(init=False)

    def __post_init__(self) -> None:
        self.turns = itertools.cycle(self.replicas)

    async def ask(self, gw: RunningGateway) -> float:
        """Seconds an answer took, tried again after a 429."""
        while True:
            started = time.monotonic()
            async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
                await response.read()
            if response.status == 200:
                self.answered += 1
                return time.monotonic() - started
            assert response.status == 429, response.status

    async def load(self, seconds: float, clients: int = CLIENTS) -> list[float]:
        until = time.monotonic() + seconds
        times: list[float] = []

        async def client() -> None:
            while time.monotonic() < until:
                times.append(await self.ask(next(self.turns)))

        await asyncio.gather(*(client() for _ in range(clients)))
        return sorted(times)

    def fill(self) -> None:
        with self.valkey.client() as client:
            client.config_set("maxmemory", "1")

    def free(self) -> None:
        with self.valkey.client() as client:
            client.config_set("maxmemory", "0")

    def scripts_run(self) -> int:
        with self.valkey.client() as client:
            stats: dict[str, Any] = client.info("commandstats")
        counts = [stats.get(f"cmdstat_{name}", {}) for name in ("evalsha", "eval")]
        return sum(int(each.get(kind, 0)) for each in counts for kind in ("calls", "rejected_calls"))

    def records(self) -> int:
        with self.valkey.client() as client:
            return int(client.xlen(STREAM))

    def slack(self) -> int:
        """Each trip without an answer, which a starved machine has too, may admit one on a replica's share."""
        kinds = ("timeout", "connection")
        name = "prime_gateway_site_troubles_total"
        return int(sum(gw.metric(name, site="local", trouble=kind) for gw in self.replicas for kind in kinds))

    def patience_s(self, seconds: float) -> float:
        return seconds + 4 * self.lag.longest_s


@asynccontextmanager
async def pair_of(folder: Path, valkey: ValkeyServer, limit: int = LIMIT) -> AsyncIterator[Pair]:
    running: list[Pair] = []

    async def script(_: web.Request) -> web.StreamResponse:
        (pair,) = running
        pair.most_at_once = max(pair.most_at_once, pair.up.open_requests)
        if pair.failing:
            return web.Response(status=500)
        await asyncio.sleep(0.02)
        return web.Response(body=UNARY, content_type="application/json")

    async with AsyncExitStack() as stack:
        up = await stack.enter_async_context(upstream(script))
        replicas = []
        for number in range(2):
            (folder / str(number)).mkdir()
            entered = gateway(
                folder / str(number),
                [up.url],
                deployment={"capacity": {"requests": limit}},
                valkey_url=f"redis://127.0.0.1:{valkey.port}",
            )
            replicas.append(await stack.enter_async_context(entered))
        pair = Pair(valkey, up, replicas, await stack.enter_async_context(lag_watched()))
        running.append(pair)
        await asyncio.sleep(SETTLED_S)
        yield pair


def p99(times: list[float]) -> float:
    return times[int(len(times) * 0.99)]


async def test_a_full_valkey_changes_nothing_but_that_settle_records_wait(
    tmp_path: Path, own_valkey: ValkeyServer
) -> None:
    async with pair_of(tmp_path, own_valkey) as pair:
        calm = await pair.load(1.5, FEW)
        pair.fill()
        with own_valkey.client() as client, pytest.raises(OutOfMemoryError):
            client.set("anything", "x")
        full = await pair.load(1.5, FEW)
        await pair.load(1.5)
        written = pair.records()
        assert LIMIT <= pair.most_at_once <= LIMIT + pair.slack(), "the sum over both replicas is still exact"
        assert all(gw.metric("prime_gateway_site_alone", site="local") == 0 for gw in pair.replicas)
        assert p99(full) - p99(calm) < pair.patience_s(TRIP_BUDGET_S)
        # Breakers are shared still: one replica's failures close the door of the other.
        pair.failing = True
        for _ in range(5):
            async with pair.replicas[0].session.post(f"{pair.replicas[0].url}/chat/completions", json=CHAT) as response:
                assert response.status == 502
        async with asyncio.timeout(pair.patience_s(1)):
            while not pair.replicas[1].metric("prime_gateway_breaker_state", deployment="d0", state="open"):
                await asyncio.sleep(0.02)
        await asyncio.sleep(1.5)
        assert pair.records() == written, "a full Valkey takes no record"
        pair.free()
        async with asyncio.timeout(15):
            while pair.records() < pair.answered + 5:
                await asyncio.sleep(0.05)
        assert all(gw.metric("prime_gateway_settle_records_lost_total") == 0 for gw in pair.replicas)
        print(f"p99 {p99(calm) * 1000:.0f} ms before, {p99(full) * 1000:.0f} ms full; {pair.answered} answered")


async def test_a_full_valkey_that_refuses_us_costs_no_request_and_no_flood(
    tmp_path: Path, own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in (
        (admission_store, "SCRIPT"),
        (breaker_store, "SCRIPT"),
        (site_store, "KNOCK"),
    ):
        monkeypatch.setattr(module, name, Script(getattr(module, name).text.replace(SCRIPT_HEADER, "#!lua\n")))
    async with pair_of(tmp_path, own_valkey) as pair:
        calm = await pair.load(1.5, FEW)
        before = pair.scripts_run()
        await pair.load(2)
        calm_rate = (pair.scripts_run() - before) / 2
        pair.fill()
        pair.most_at_once, before = 0, pair.scripts_run()
        full = await pair.load(1.5, FEW)
        await pair.load(1.5)
        refused_rate = (pair.scripts_run() - before) / 3
        alone = [gw.metric("prime_gateway_site_alone", site="local") for gw in pair.replicas]
        assert alone == [1, 1]
        assert pair.most_at_once <= LIMIT + pair.slack(), "each replica keeps to its half"
        assert refused_rate < calm_rate, "a Valkey in trouble is asked less, not more"
        assert p99(full) - p99(calm) < pair.patience_s(TRIP_BUDGET_S)
        # Fail-static: what was known of breakers stands, and each replica goes on by the same law.
        assert all(gw.metric("prime_gateway_breaker_state", deployment="d0", state="closed") for gw in pair.replicas)
        refusals = sum(
            gw.metric("prime_gateway_site_troubles_total", site="local", trouble="refusing") for gw in pair.replicas
        )
        assert refusals >= 4
        pair.free()
        freed, before = time.monotonic(), pair.scripts_run()
        back = await pair.load(1)
        first_second = pair.scripts_run() - before
        async with asyncio.timeout(pair.patience_s(4)):
            while any(gw.metric("prime_gateway_site_alone", site="local") for gw in pair.replicas):
                await asyncio.sleep(0.02)
        back_s = time.monotonic() - freed
        assert first_second < 2 * calm_rate + 50, "the way back is no flood"
        assert back
        await asyncio.sleep(SETTLED_S)
        pair.most_at_once = 0
        await pair.load(1.5)
        assert LIMIT <= pair.most_at_once <= LIMIT + pair.slack()
        print(
            f"p99 {p99(calm) * 1000:.0f} ms before, {p99(full) * 1000:.0f} ms full; scripts a second "
            f"{calm_rate:.0f} before, {refused_rate:.0f} refused, {first_second} in the first back ({back_s:.1f} s)"
        )
