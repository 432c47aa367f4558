import asyncio

import pytest

from gateway.api.keep_alive import KeepAlive


async def test_nothing_is_said_before_its_time() -> None:
    said: list[int] = []

    async def say() -> None:
        said.append(1)

    waiting = KeepAlive(30.0, say)
    await asyncio.sleep(0.01)
    await waiting.end()
    assert said == []


async def test_it_is_said_again_and_again_and_never_after_the_end() -> None:
    said: list[int] = []
    enough = asyncio.Event()

    async def say() -> None:
        said.append(1)
        if len(said) == 3:
            enough.set()

    waiting = KeepAlive(0.001, say)
    await asyncio.wait_for(enough.wait(), 10)
    await waiting.end()
    count = len(said)
    await asyncio.sleep(0.02)
    assert len(said) == count


async def test_a_client_that_does_not_read_does_not_hold_up_the_end() -> None:
    saying = asyncio.Event()

    async def say() -> None:
        saying.set()
        await asyncio.Event().wait()

    waiting = KeepAlive(0.001, say)
    await asyncio.wait_for(saying.wait(), 10)
    await asyncio.wait_for(waiting.end(), 10)


async def test_what_saying_it_raised_is_raised_at_the_end() -> None:
    saying = asyncio.Event()

    async def say() -> None:
        saying.set()
        raise RuntimeError("a bug")

    waiting = KeepAlive(0.001, say)
    await asyncio.wait_for(saying.wait(), 10)
    with pytest.raises(RuntimeError, match="a bug"):
        await waiting.end()
