"""What a request leaves for the garbage collector: nothing. So its pauses stay rare, however many requests there are."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.relay.sessions import Turn
from tests.gateway.test_relay import DONE, STREAM, chunk
from tests.support.gateway import gateway
from tests.support.upstream import sends, upstream

REQUESTS = 30


@contextmanager
def garbage_of_ours() -> Iterator[list[object]]:
    """While the block runs nothing is collected; then the list has what of the gateway's only a collection would free."""
    found: list[object] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += [each for each in gc.garbage if type(each).__module__.startswith(("gateway.", "uvicorn."))]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


async def test_streams_that_end_well_leave_no_garbage(tmp_path: Path) -> None:
    async with upstream(sends(chunk("a"), chunk("b", "length"), DONE)) as up, gateway(tmp_path, [up.url]) as gw:
        url = f"{gw.url}/chat/completions"

        async def ask(count: int) -> None:
            for _ in range(count):
                async with gw.session.post(url, json=STREAM) as answer:
                    assert (await answer.read()).endswith(DONE)

        await ask(3)  # connections are made, once
        with garbage_of_ours() as found:
            await ask(REQUESTS)
        assert len(found) < REQUESTS, [type(each) for each in found]


def test_the_table_of_sessions_is_not_looked_through() -> None:
    assert not gc.is_tracked(Turn("d", 1, 2, 3))
