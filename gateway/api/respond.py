"""Answers to the client: the unary body, the event stream, and what happens when the client has gone."""

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.metering.settle import Outcome, Settlement
from gateway.relay.attempts import OpenStream
from gateway.relay.stream import StreamEnd, UpstreamErrorEvent

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # nginx and its relatives buffer a response unless told otherwise.
    (b"x-accel-buffering", b"no"),
]

Answer = TypeVar("Answer")


class ClientGone(Exception):
    """The client closed the connection before the answer began."""


async def gone(receive: Receive) -> None:
    """Returns when the client has closed the connection. The request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Answer]) -> Answer:
    """The result of `work`; cancels it and raises ClientGone when the client leaves first."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        await _stop(working, watching)


async def _stop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    # A task's own error has been taken by `result` or belongs to an answer nobody waits for.
    await asyncio.gather(*tasks, return_exceptions=True)


class EventStream(Response):
    """Relays an open stream. Owns it and the settlement: both are closed when the call ends, however it ends."""

    def __init__(self, stream: OpenStream, settlement: Settlement, total_timeout_s: float) -> None:
        self.status_code = 200
        self.background = None
        self.raw_headers = list(STREAM_HEADERS)
        self._stream = stream
        self._settlement = settlement
        self._total_timeout_s = total_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pumping = asyncio.create_task(self._pump(send))
        watching = asyncio.create_task(gone(receive))
        outcome = Outcome.CLIENT_GONE
        try:
            await asyncio.wait({pumping, watching}, return_when=asyncio.FIRST_COMPLETED)
            if pumping.done():
                pumping.result()
                complete = self._stream.editor.ending is StreamEnd.COMPLETE
                outcome = Outcome.OK if complete else Outcome.STREAM_ERROR
        finally:
            # Nothing here may wait before the upstream is closed: we may be cancelled ourselves.
            if not self._stream.editor.closed or outcome is not Outcome.OK:
                self._stream.close()
            self._settlement.usage = self._stream.editor.usage
            self._settlement.timing = self._stream.editor.timing
            self._settlement.close(outcome)
            await _stop(pumping, watching)

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with asyncio.timeout(self._total_timeout_s):
                await _body(send, self._stream.first)
                async for batch in self._stream.batches():
                    await _body(send, batch)
        except TimeoutError:
            error = UpstreamErrorEvent(504, f"the answer took longer than {self._total_timeout_s:g} s")
            await _body(send, self._stream.editor.fail(error, StreamEnd.TRUNCATED))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _body(send: Send, data: bytes) -> Awaitable[None]:
    return send({"type": "http.response.body", "body": data, "more_body": True})
