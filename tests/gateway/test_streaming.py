"""What a stream does to its client where the client, or the replica, is not at its best."""

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from tests.gateway.test_relay import DONE, STREAM, USAGE, WHOLE, chunk
from tests.support.gateway import KEY, RunningGateway, gateway
from tests.support.upstream import hangs, sends, upstream

IN_FLIGHT = "prime_gateway_in_flight_requests"


def request() -> bytes:
    body = json.dumps(STREAM).encode()
    head = f"POST /api/v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def connected(gw: RunningGateway) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = gw.url.removeprefix("http://").removesuffix("/api/v1").split(":")
    return await asyncio.open_connection(host, int(port), limit=1024)


async def body_of(reader: asyncio.StreamReader) -> bytes:
    """Of one chunked answer."""
    assert b" 200 " in await reader.readline()
    while await reader.readline() != b"\r\n":
        continue
    parts = []
    while size := int(await reader.readline(), 16):
        parts.append(await reader.readexactly(size))
        assert await reader.readexactly(2) == b"\r\n"
    assert await reader.readline() == b"\r\n"
    return b"".join(parts)


async def test_a_client_that_reads_late_gets_everything_in_order_and_the_engine_waits_for_it(tmp_path: Path) -> None:
    events = [chunk(f"{n} " + "x" * 1000) for n in range(20_000)]
    sent = 0

    async def fast(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in (*events, chunk("", "stop"), USAGE, DONE):
            await response.write(event)
            sent += 1
        return response

    async with upstream(fast) as up, gateway(tmp_path, [up.url]) as gw:
        reader, writer = await connected(gw)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request())
        async with asyncio.timeout(60):
            before = -1
            while sent == 0 or sent != before:
                before = sent
                await asyncio.sleep(0.3)
            # What the sockets and our own bounds hold is well under these 20 MB.
            assert sent < len(events)
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert await body_of(reader) == b"".join(events) + chunk("", "stop") + DONE
        writer.close()


async def test_a_second_request_on_the_connection_waits_for_the_first_ones_stream(tmp_path: Path) -> None:
    async with upstream(sends(*WHOLE, pause_s=0.02)) as up, gateway(tmp_path, [up.url]) as gw:
        reader, writer = await connected(gw)
        writer.write(request() * 3)
        for _ in range(3):
            async with asyncio.timeout(20):
                assert await body_of(reader) == b"".join(WHOLE).replace(USAGE, b"")
        writer.close()


@pytest.mark.parametrize("parts", [[], [b": comment\n\n"]])
async def test_a_stream_that_does_not_begin_before_the_deadline_is_a_504(tmp_path: Path, parts: list[bytes]) -> None:
    async with upstream(hangs(*parts)) as up, gateway(tmp_path, [up.url], total_timeout_seconds=0.3) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", json=STREAM) as response:
            assert response.status == 504
        async with asyncio.timeout(5):
            while up.open_requests or gw.metric(IN_FLIGHT, endpoint="chat/completions"):
                await asyncio.sleep(0.01)


async def test_a_stream_that_has_not_begun_when_the_replica_ends_is_a_503_to_be_retried(tmp_path: Path) -> None:
    async with upstream(hangs()) as up, gateway(tmp_path, [up.url]) as gw:
        asking = asyncio.ensure_future(gw.session.post(f"{gw.url}/chat/completions", json=STREAM))
        async with asyncio.timeout(10):
            while not up.open_requests:
                await asyncio.sleep(0.01)
            gw.state.shutdown.come()
            async with await asking as response:
                assert response.status == 503
                assert response.headers["x-should-retry"] == "true"
            while up.open_requests:
                await asyncio.sleep(0.01)


async def test_comments_come_while_a_stream_is_late_and_then_the_stream(tmp_path: Path) -> None:
    async def late(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.5)
        return await sends(*WHOLE)(request)

    async with upstream(late) as up, gateway(tmp_path, [up.url], keepalive_seconds=0.1) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", json=STREAM) as response:
            assert response.status == 200
            body = await response.read()
        comments = body.count(b": keep-alive\n\n")
        assert comments >= 2
        assert body == b": keep-alive\n\n" * comments + b"".join(WHOLE).replace(USAGE, b"")


@pytest.mark.parametrize("last_marker_after_s", [0.0, 0.3])
async def test_clients_that_close_on_done_leave_no_connection_behind(
    tmp_path: Path, last_marker_after_s: float
) -> None:
    connections: set[asyncio.StreamWriter] = set()

    async def frontend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                for event in WHOLE:
                    writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                await asyncio.sleep(last_marker_after_s)
                writer.write(b"0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            connections.discard(writer)
            writer.close()

    async with await asyncio.start_server(frontend, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with gateway(tmp_path, [f"http://127.0.0.1:{port}"]) as gw:
            for _ in range(10):
                reader, writer = await connected(gw)
                writer.write(request())
                await reader.readuntil(b"[DONE]")
                writer.close()
                async with asyncio.timeout(5):
                    while gw.metric(IN_FLIGHT, endpoint="chat/completions"):
                        await asyncio.sleep(0.01)
            async with asyncio.timeout(5):
                while len(connections) > 1:  # one may wait for the next request
                    await asyncio.sleep(0.01)
