"""A Valkey whose every answer comes late, as over a crowded network or from a machine that swaps: not gone, only slow."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import cast

import pytest

from gateway.site.trip_budget import TRIP_BUDGET_S, TRIP_TIMEOUT_S, Patience
from tests.contract.test_admission_of_a_fleet import BUSY_MACHINE_S, QUICK, ask, fleet, within
from tests.valkey_server import ValkeyServer

UNHURRIED = Patience(request_s=1.0, background_s=1.0)
"""A busy machine adds to what is late here."""


class Slowed:
    """A way to a Valkey on which answers take `delay_s` longer. Stands where a ValkeyServer is asked for its port."""

    def __init__(self, port_behind: int) -> None:
        self.port = 0
        self.delay_s = 0.0
        self._behind = port_behind
        self._passing: set[asyncio.Task[None]] = set()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, slowly: bool) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(65_536):
                if slowly:
                    await asyncio.sleep(self.delay_s)
                writer.write(data)
        writer.close()

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection("127.0.0.1", self._behind)
        ways = ((reader, behind_writer, False), (behind_reader, writer, True))
        for way in ways:
            task = asyncio.create_task(self._pass(*way))
            self._passing.add(task)
            task.add_done_callback(self._passing.discard)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[ValkeyServer]:
        server = await asyncio.start_server(self._met, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield cast(ValkeyServer, self)
        finally:
            server.close()
            for task in self._passing:
                task.cancel()
            await asyncio.gather(*self._passing, return_exceptions=True)


async def test_a_valkey_slower_than_usual_is_waited_for_and_its_sums_hold(own_valkey: ValkeyServer) -> None:
    slow = Slowed(own_valkey.port)
    async with slow.serving() as valkey, fleet(valkey, "later", patience=UNHURRIED) as replicas:
        slow.delay_s = TRIP_TIMEOUT_S / 3
        started = time.monotonic()
        granted = [await replicas.take(who, 4, ask(patience_s=1.0)) for who in (0, 1)]
        assert time.monotonic() - started < 2 * TRIP_BUDGET_S + BUSY_MACHINE_S
        assert granted == [4, 4]
        assert not any(replica.alone for replica in replicas.replicas)


@pytest.mark.parametrize("delay_s", [0.08, 0.2, 0.6])
async def test_a_valkey_too_slow_for_a_request_costs_it_its_budget_at_most_and_is_taken_back_when_it_is_quick(
    own_valkey: ValkeyServer, delay_s: float
) -> None:
    slow = Slowed(own_valkey.port)
    async with slow.serving() as valkey, fleet(valkey, "slow", patience=Patience()) as replicas:
        slow.delay_s = delay_s
        waits = await replicas.waits()
        print(f"answers {delay_s * 1000:.0f} ms late: slowest {max(waits) * 1000:.0f} ms, ")
        print(f"median {sorted(waits)[15] * 1000:.2f} ms")
        assert max(waits) < TRIP_BUDGET_S + BUSY_MACHINE_S
        assert sorted(waits)[len(waits) // 2] < 0.01, "once it is given up, no request waits"
        assert sum(len(replicas.held[who]) for who in (0, 1, 2)) >= 9, "the shares: floor(10 / 3) each"
        slow.delay_s = 0.0
        await within(5.0, lambda: not any(replica.alone for replica in replicas.replicas))
        await asyncio.sleep(QUICK.settle_ms / 1000 + 0.2)
        assert all(site.link.is_up for site in replicas.sites)
        for who in (0, 1, 2):
            replicas.release(who, len(replicas.held[who]))
        took = await replicas.take_what_is_free()
        assert took == 10, "all of it is to be had again, and no more"
