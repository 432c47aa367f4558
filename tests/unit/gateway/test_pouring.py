"""A body that is handed on in the event loop's own turn, beside one that a task reads."""

import asyncio
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.connection import HELD_BYTES, Broken, Connection, Silent
from tests.unit.gateway.test_connection import CHUNKED, TO_THE_END, Transport, connected, received

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def begun() -> tuple[Connection, Transport]:
    """With an answer's head read."""
    connection, transport = connected()
    connection.send(b"request")
    connection.data_received(HEAD)
    return connection, transport


def taking(into: list[bytes], most: int | None = None) -> Callable[[bytes], bool]:
    """Takes everything; with `most`, says after so many pieces that it wants no more for now."""

    def take(data: bytes) -> bool:
        into.append(data)
        return most is None or len(into) % most != 0

    return take


@given(
    st.sampled_from([CHUNKED, TO_THE_END]),
    st.lists(st.integers(0, 90), max_size=10),
    st.lists(st.booleans(), min_size=1, max_size=8),
    st.integers(1, 3),
)
def test_reads_and_pours_in_any_order_give_the_body_once_and_in_order(
    data: bytes, cuts: list[int], pours: list[bool], most: int
) -> None:
    async def run() -> None:
        connection, transport = connected()
        connection.send(b"request")
        got: list[bytes] = []

        async def read_all() -> None:
            await connection.head()
            for pour in itertools.cycle(pours):
                if pour:
                    if not await connection.pour(taking(got, most)):
                        return
                elif not (piece := await connection.read()):
                    return
                else:
                    got.append(piece)

        reading = asyncio.ensure_future(read_all())
        await received(connection, data, cuts)
        await asyncio.wait_for(reading, 10)
        assert b"".join(got) == b"hello"
        assert connection.done() is (data is CHUNKED)
        assert not transport.aborted

    asyncio.run(run())


async def test_pieces_are_handed_on_without_the_reader() -> None:
    connection, _ = begun()
    got: list[bytes] = []
    pouring = asyncio.ensure_future(connection.pour(taking(got)))
    await asyncio.sleep(0)
    for piece in (b"a", b"b"):
        connection.data_received(chunk(piece))
        await asyncio.sleep(0)
    assert (got, pouring.done()) == ([b"a", b"b"], False)
    connection.data_received(LAST)
    assert await pouring is False


async def test_who_wants_no_more_gets_the_rest_later() -> None:
    connection, _ = begun()
    got: list[bytes] = []
    pouring = asyncio.ensure_future(connection.pour(taking(got, 1)))
    await asyncio.sleep(0)
    connection.data_received(chunk(b"a"))
    assert await pouring is True
    connection.data_received(chunk(b"b"))
    await asyncio.sleep(0)
    assert got == [b"a"]
    assert await connection.read() == b"b"


async def test_one_who_takes_no_more_stops_the_socket() -> None:
    connection, transport = begun()
    got: list[bytes] = []
    pouring = asyncio.ensure_future(connection.pour(taking(got, 1)))
    await asyncio.sleep(0)
    connection.data_received(chunk(b"a"))
    await pouring
    connection.data_received(chunk(b"x" * (HELD_BYTES + 1)))
    assert transport.paused
    assert await connection.pour(taking(got, 1)) is True
    assert not transport.paused


@pytest.mark.parametrize("before", [b"", chunk(b"a")])
async def test_what_came_before_the_connection_broke_is_handed_on(before: bytes) -> None:
    connection, _ = begun()
    got: list[bytes] = []
    pouring = asyncio.ensure_future(connection.pour(taking(got)))
    await asyncio.sleep(0)
    if before:
        connection.data_received(before)
    connection.connection_lost(None)
    with pytest.raises(Broken):
        await pouring
    assert b"".join(got) == (b"a" if before else b"")


async def test_what_the_taker_raises_is_the_readers() -> None:
    connection, _ = begun()

    def take(data: bytes) -> bool:
        raise ValueError(data.decode())

    pouring = asyncio.ensure_future(connection.pour(take))
    await asyncio.sleep(0)
    connection.data_received(chunk(b"a"))
    with pytest.raises(ValueError, match="a"):
        await pouring


async def test_a_pourer_that_is_cancelled_has_lost_nothing() -> None:
    connection, _ = begun()
    got: list[bytes] = []
    pouring = asyncio.ensure_future(connection.pour(taking(got)))
    await asyncio.sleep(0)
    connection.data_received(chunk(b"a"))
    pouring.cancel()
    await asyncio.gather(pouring, return_exceptions=True)
    connection.data_received(chunk(b"b") + LAST)
    while piece := await connection.read():
        got.append(piece)
    assert b"".join(got) == b"ab"


async def test_silence_ends_a_pour_and_each_piece_begins_it_anew() -> None:
    connection, _ = begun()
    connection.bound_silence(0.1)
    loop = asyncio.get_running_loop()
    got: list[bytes] = []
    started = loop.time()
    for n in range(1, 4):
        loop.call_later(0.06 * n, connection.data_received, chunk(b"x"))
    with pytest.raises(Silent):
        await connection.pour(taking(got))
    assert got == [b"x"] * 3
    assert loop.time() - started >= 0.06 * 3 + 0.09
