"""A thousand clients that leave at random moments: each frees its deployment, its lease and its record within a second."""

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from gateway.metering.settle import SettleRecord
from tests.gateway.test_relay import DONE, UNARY, chunk
from tests.gateway.test_typed_streams import MESSAGE_STREAM, RESPONSE_STREAM
from tests.support.gateway import KEY, RunningGateway, gateway
from tests.support.lag import lag_watched
from tests.support.upstream import upstream

pytestmark = pytest.mark.slow

ABORTS = 1000
AT_ONCE = 50
FREED_S = 1.0
LATEST_ABORT_S = 0.5
"""A little longer than the longest answer: a few are left after it was complete."""
PREFILL_S, EVENT_S, EVENTS, WHOLE_S = 0.1, 0.01, 30, 0.35
USER = [{"role": "user", "content": "hi"}]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("chat/completions", {"messages": USER, "stream": True}),
    "chat, whole": ("chat/completions", {"messages": USER}),
    "text": ("completions", {"prompt": "hi", "stream": True}),
    "responses": ("responses", {"input": "hi", "stream": True}),
    "messages": ("messages", {"messages": USER, "max_tokens": 5, "stream": True}),
}


@dataclass
class Books:
    """When things happened, by request id."""

    arrived: dict[str, float] = field(default_factory=dict)
    left: dict[str, float] = field(default_factory=dict)
    freed: dict[str, float] = field(default_factory=dict)
    settled: dict[str, SettleRecord] = field(default_factory=dict)
    settled_at: dict[str, float] = field(default_factory=dict)

    def keep(self, record: SettleRecord) -> None:
        assert record.request_id not in self.settled, "settled twice"
        self.settled[record.request_id] = record
        self.settled_at[record.request_id] = time.monotonic()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        request_id = request.headers["x-request-id"]
        self.arrived[request_id] = time.monotonic()
        try:
            if not (await request.json()).get("stream"):
                await asyncio.sleep(WHOLE_S)
                return web.Response(body=UNARY, content_type="application/json")
            await asyncio.sleep(PREFILL_S)
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            for event in _events(request.path):
                await response.write(event)
                await asyncio.sleep(EVENT_S)
            return response
        finally:
            self.freed[request_id] = time.monotonic()


def _events(path: str) -> list[bytes]:
    typed = {"/v1/responses": RESPONSE_STREAM, "/v1/messages": MESSAGE_STREAM}.get(path)
    if typed is None:
        return [*(chunk(str(n)) for n in range(EVENTS)), chunk("", "stop"), DONE]
    first, *inner, last = typed
    return [first, *inner * (EVENTS // len(inner)), last]


async def left_after(gw: RunningGateway, books: Books, request_id: str, kind: str, seconds: float) -> None:
    """One request on a connection of its own, read as it comes and dropped at that moment."""
    path, fields = KINDS[kind]
    body = json.dumps({"model": "m", **fields}).encode()
    host, port = gw.url.removeprefix("http://").removesuffix("/api/v1").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /api/v1/{path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\nx-request-id: {request_id}\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    try:
        async with asyncio.timeout(seconds):
            while await reader.read(65536):
                pass
    except TimeoutError:
        pass
    books.left[request_id] = time.monotonic()
    if random.random() < 0.5:
        writer.transport.abort()
    else:
        writer.close()


def tasks() -> int:
    """Without those that the deployment keeps, one a connection that the gateway keeps for the next request."""
    return sum(getattr(task.get_coro(), "__name__", "") != "start" for task in asyncio.all_tasks())


async def test_a_thousand_clients_leave_at_random_and_each_frees_everything_within_a_second(tmp_path: Path) -> None:
    books = Books()
    async with upstream(books.answer) as up, gateway(tmp_path, [up.url]) as gw, lag_watched() as lag:
        gw.state.settle_stream = SimpleNamespace(keep=books.keep)  # type: ignore[assignment]
        tasks_before = tasks()
        for batch in range(ABORTS // AT_ONCE):
            moments = [random.uniform(0, LATEST_ABORT_S) for _ in range(AT_ONCE)]
            kinds = random.choices(list(KINDS), k=AT_ONCE)
            await asyncio.gather(
                *(
                    left_after(gw, books, f"r-{batch}-{n}", kind, moment)
                    for n, (kind, moment) in enumerate(zip(kinds, moments, strict=True))
                )
            )
        bound_s = FREED_S + 2 * lag.longest_s
        async with asyncio.timeout(bound_s):
            while gw.metric("prime_gateway_admitted_requests", deployment="d0") or up.open_requests:
                await asyncio.sleep(0.01)
        async with asyncio.timeout(5):
            while tasks() > tasks_before + 5:
                await asyncio.sleep(0.05)
        assert gw.state.settlements == 0
        assert sum(gw.metric("prime_gateway_in_flight_requests", endpoint=path) for path, _ in KINDS.values()) == 0

    assert set(books.arrived) == set(books.freed) <= set(books.settled)
    late_up = [each for each in books.arrived if books.freed[each] - books.left[each] > bound_s]
    late_lease = [each for each in books.settled if books.settled_at[each] - books.left[each] > bound_s]
    assert (late_up, late_lease) == ([], [])
    by_outcome = {outcome: 0 for outcome in ("client_gone", "ok")}
    for record in books.settled.values():
        by_outcome[record.outcome] += 1
    assert by_outcome["client_gone"] > ABORTS / 2
    worst = max(books.freed[each] - books.left[each] for each in books.arrived)
    print(
        f"{by_outcome}; {len(books.arrived)} reached the deployment; freed at most {worst * 1000:.0f} ms after", end=""
    )
    print(f" (longest lag {lag.longest_s * 1000:.0f} ms)")
