"""An answer's head waits for its body, and never longer than a turn of the event loop."""

import asyncio
from typing import Any

import pytest

from gateway.listener import HeadHolder

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed_after: int | None = None

    def write(self, data: Any) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.closed_after = len(self.writes)

    def abort(self) -> None:
        self.closed_after = len(self.writes)


@pytest.fixture
async def both() -> tuple[HeadHolder, Transport]:
    transport = Transport()
    return HeadHolder(transport, asyncio.get_running_loop()), transport


async def test_head_and_body_leave_together(both: tuple[HeadHolder, Transport]) -> None:
    holder, transport = both
    holder.write(HEAD)
    holder.write(b"{}")
    holder.write(b"more")
    await asyncio.sleep(0)
    assert transport.writes == [HEAD + b"{}", b"more"]


async def test_a_head_without_a_body_leaves_with_the_turn(both: tuple[HeadHolder, Transport]) -> None:
    holder, transport = both
    holder.write(HEAD)
    assert transport.writes == []
    await asyncio.sleep(0)
    assert transport.writes == [HEAD]


async def test_two_heads_are_both_sent(both: tuple[HeadHolder, Transport]) -> None:
    holder, transport = both
    holder.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    holder.write(HEAD)
    assert transport.writes == [b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD]


async def test_a_head_leaves_before_its_connection_closes(both: tuple[HeadHolder, Transport]) -> None:
    holder, transport = both
    holder.write(HEAD)
    holder.close()
    await asyncio.sleep(0)
    assert (transport.writes, transport.closed_after) == ([HEAD], 1)


async def test_an_aborted_connection_gets_nothing_more(both: tuple[HeadHolder, Transport]) -> None:
    holder, transport = both
    holder.write(HEAD)
    holder.abort()
    await asyncio.sleep(0)
    assert transport.writes == []
