"""The time limit beside asyncio's own: the same ends in the same cases."""

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from gateway.relay.limit import Limit


def cancellations() -> int:
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def sleeps(within_s: float, seconds: float = 5.0) -> None:
    with Limit(within_s):
        await asyncio.sleep(seconds)


async def ends_early(times: int = 1) -> None:
    limit = Limit(5)
    with limit:
        for _ in range(times):
            asyncio.get_running_loop().call_soon(limit.end)
        await asyncio.sleep(5)


async def test_what_ends_in_time_ends_as_ever() -> None:
    await sleeps(5, 0)
    await asyncio.sleep(0)
    assert cancellations() == 0


@pytest.mark.parametrize("seconds", [0.01, 0.0, -1.0])
async def test_what_takes_longer_is_cancelled_and_leaves_as_a_timeout(seconds: float) -> None:
    with pytest.raises(TimeoutError) as caught:
        await sleeps(seconds)
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert cancellations() == 0


async def test_its_end_can_be_brought_forward_once() -> None:
    with pytest.raises(TimeoutError):
        await ends_early(times=2)
    assert cancellations() == 0


async def test_an_end_after_the_block_is_none() -> None:
    limit = Limit(5)
    with limit:
        await asyncio.sleep(0)
    limit.end()
    await asyncio.sleep(0)


async def test_the_inner_of_two_ends_only_itself() -> None:
    with Limit(5):
        with pytest.raises(TimeoutError):
            await sleeps(0.01)
        await asyncio.sleep(0)


async def test_the_outer_of_two_goes_through_the_inner_as_a_cancellation() -> None:
    seen: list[type[BaseException]] = []

    async def both() -> None:
        with Limit(0.01):
            try:
                await sleeps(5)
            except BaseException as error:
                seen.append(type(error))
                raise

    with pytest.raises(TimeoutError):
        await both()
    assert seen == [asyncio.CancelledError]


@pytest.mark.parametrize("work", [lambda: sleeps(5), ends_early])
async def test_a_cancellation_from_elsewhere_goes_on_as_one(work: Callable[[], Awaitable[None]]) -> None:
    """Also one that comes in the same turn of the loop as the limit's own end."""
    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    (result,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(result, asyncio.CancelledError)


async def test_an_error_of_the_block_is_its_own() -> None:
    with pytest.raises(ValueError, match="mine"), Limit(5):
        raise ValueError("mine")


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_what_came_while_the_loop_stood_still_came_in_time(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def reads(ours: socket.socket) -> bytes:
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            with Limit(0.1):
                asyncio.get_running_loop().call_soon(time.sleep, 0.3)
                return await reader.read(10)
        finally:
            writer.close()

    ours, theirs = socket.socketpair()
    with theirs, asyncio.Runner(loop_factory=new_loop) as runner:
        sender = threading.Timer(0.05, theirs.sendall, [b"here"])
        sender.start()
        assert runner.run(reads(ours)) == b"here"
        sender.join()
