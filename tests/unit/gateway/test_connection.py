"""Bytes of a frontend, cut anywhere, through the connection that reads them."""

import asyncio
import itertools
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.connection import HELD_BYTES, MAX_HEAD_BYTES, Broken, Connection, Silent
from gateway.relay.pool import Address, Origin, address_of
from gateway.relay.turns import Turns
from gateway.relay.upstream import _request

LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\ntrailer: 1\r\n\r\n"
EARLY = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + LENGTH
CLOSING = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello"
TO_THE_END = b"HTTP/1.1 200 OK\r\n\r\nhello"
BUSY = b"HTTP/1.1 529 Busy\r\ncontent-length: 5\r\n\r\nhello"


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = self.paused = False
        self.unsent = 0

    def write(self, data: Any) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_write_buffer_size(self) -> int:
        return self.unsent


def connected() -> tuple[Connection, Transport]:
    connection, transport = Connection(asyncio.get_running_loop(), Turns()), Transport()
    connection.connection_made(transport)
    return connection, transport


async def received(connection: Connection, data: bytes, cuts: list[int]) -> None:
    """In pieces, the reader let in between some of them."""
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in itertools.pairwise(edges):
        connection.data_received(data[start:end])
        if start % 2:
            await asyncio.sleep(0)
    if data is TO_THE_END:
        connection.connection_lost(None)


async def whole(connection: Connection) -> tuple[int, bytes]:
    status, body = await connection.head(), b""
    while data := await connection.read():
        body += data
    return status, body


@given(
    st.sampled_from(
        [(LENGTH, True), (CHUNKED, True), (EARLY, True), (CLOSING, False), (BUSY, True), (TO_THE_END, False)]
    ),
    st.lists(st.integers(0, 120), max_size=12),
)
def test_every_cut_gives_the_same_answer(answer: tuple[bytes, bool], cuts: list[int]) -> None:
    data, reusable = answer

    async def run() -> None:
        connection, transport = connected()
        connection.send(b"request")
        reading = asyncio.ensure_future(whole(connection))
        await received(connection, data, cuts)
        assert await reading == (529 if data is BUSY else 200, b"hello")
        assert connection.done() is reusable
        assert not transport.aborted

    asyncio.run(run())


@pytest.mark.parametrize("data", [LENGTH, CHUNKED, EARLY])
async def test_an_answer_that_stops_early_is_broken_wherever_it_stops(data: bytes) -> None:
    for end in range(len(data) - 1):
        connection, _ = connected()
        connection.send(b"request")
        reading = asyncio.ensure_future(whole(connection))
        connection.data_received(data[:end])
        await asyncio.sleep(0)
        connection.connection_lost(None)
        with pytest.raises(Broken):
            await reading
        assert not connection.done()


async def test_one_connection_serves_one_request_after_another() -> None:
    connection, transport = connected()
    for data in (LENGTH, CHUNKED, BUSY, LENGTH):
        connection.send(b"request")
        connection.data_received(data)
        assert (await whole(connection))[1] == b"hello"
        assert connection.done()
    assert transport.written == b"request" * 4


async def test_what_is_not_http_breaks_it() -> None:
    connection, transport = connected()
    connection.send(b"request")
    connection.data_received(b"SSH-2.0-OpenSSH_9.6\r\n")
    with pytest.raises(Broken, match="not HTTP"):
        await connection.head()
    assert transport.aborted


async def test_headers_without_an_end_are_not_held_for_ever() -> None:
    connection, transport = connected()
    connection.send(b"request")
    connection.data_received(b"HTTP/1.1 200 OK\r\n")
    for _ in range(MAX_HEAD_BYTES // 1000 + 1):
        connection.data_received(b"x: " + b"y" * 1000 + b"\r\n")
    with pytest.raises(Broken, match="without an end"):
        await connection.head()
    assert transport.aborted


async def test_a_compressed_answer_is_none() -> None:
    connection, _ = connected()
    connection.send(b"request")
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 5\r\n\r\nhello")
    with pytest.raises(Broken, match="compressed"):
        await connection.head()


async def test_an_answer_that_nobody_asked_for_ends_the_connection() -> None:
    connection, transport = connected()
    connection.send(b"request")
    connection.data_received(LENGTH)
    await whole(connection)
    assert connection.done()
    connection.data_received(LENGTH)
    assert transport.aborted
    assert connection.closed


async def test_an_answer_before_the_request_has_gone_leaves_no_reusable_connection() -> None:
    connection, transport = connected()
    transport.unsent = 1
    connection.send(b"request")
    connection.data_received(LENGTH)
    await whole(connection)
    assert not connection.done()


async def test_a_reader_that_is_slow_stops_the_socket() -> None:
    connection, transport = connected()
    connection.send(b"request")
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n" + b"x" * (HELD_BYTES + 1))
    assert transport.paused
    assert len(await connection.read()) == HELD_BYTES + 1
    assert not transport.paused


async def test_silence_counts_only_while_somebody_waits() -> None:
    connection, _ = connected()
    connection.send(b"request")
    connection.data_received(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    await connection.head()
    connection.bound_silence(0.1)
    loop = asyncio.get_running_loop()
    for _ in range(4):
        await asyncio.sleep(0.06)
        loop.call_later(0.06, connection.data_received, b"1\r\nx\r\n")
        assert await connection.read() == b"x"
    started = loop.time()
    with pytest.raises(Silent):
        await connection.read()
    assert loop.time() - started >= 0.09


async def test_a_reader_that_is_cancelled_has_lost_nothing() -> None:
    connection, _ = connected()
    connection.send(b"request")
    reading = asyncio.ensure_future(connection.head())
    await asyncio.sleep(0)
    connection.data_received(LENGTH)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert await whole(connection) == (200, b"hello")


async def test_a_connection_that_has_ended_takes_no_request() -> None:
    connection, _ = connected()
    connection.connection_lost(None)
    with pytest.raises(Broken):
        connection.send(b"request")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://10.0.0.1:8000/v1/x", Address(Origin("10.0.0.1", 8000, False), "10.0.0.1:8000", "/v1/x")),
        ("http://east/v1/x", Address(Origin("east", 80, False), "east", "/v1/x")),
        ("https://east/v1/x", Address(Origin("east", 443, True), "east", "/v1/x")),
        ("http://[::1]:8000/v1/x", Address(Origin("::1", 8000, False), "[::1]:8000", "/v1/x")),
    ],
)
def test_a_frontends_address(url: str, address: Address) -> None:
    assert address_of(url) == address


def test_a_request_is_its_headers_and_its_body() -> None:
    address = address_of("http://east:8000/v1/x")
    request = _request(address, {"x-request-id": "r"}, b"{}")
    assert request == b"POST /v1/x HTTP/1.1\r\nhost: east:8000\r\ncontent-length: 2\r\nx-request-id: r\r\n\r\n{}"


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\nb", "a\rb"])
def test_no_value_can_add_a_header(value: str) -> None:
    with pytest.raises(ValueError, match="line end"):
        _request(address_of("http://east/v1/x"), {"x-request-id": value}, b"")


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("poured", [False, True])
def test_what_came_while_the_loop_stood_still_is_no_silence(
    new_loop: Callable[[], asyncio.AbstractEventLoop], poured: bool
) -> None:
    async def reads(ours: socket.socket) -> bytes:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: Connection(loop, Turns()), sock=ours)
        connection.send(b"GET / HTTP/1.1\r\n\r\n")
        connection.bound_silence(0.1)
        loop.call_later(0.02, time.sleep, 0.3)
        await connection.head()
        body: list[bytes] = []
        if poured:
            await connection.pour(lambda data: body.append(data) is None)
        else:
            body.append(await connection.read())
        connection.abort()
        return b"".join(body)

    ours, theirs = socket.socketpair()
    with theirs, asyncio.Runner(loop_factory=new_loop) as runner:
        sender = threading.Timer(0.05, theirs.sendall, [LENGTH])
        sender.start()
        assert runner.run(reads(ours)) == b"hello"
        sender.join()
