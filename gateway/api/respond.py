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


async def _stop(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    # A task's own error has been taken by `result` or belongs to an answer nobody waits for.
    await asyncio.gather(*tasks, return_exceptions=True)


WRITE_GRACE_S = 5.0
"""What a client may take, past the request's total time, to read the error event that says so."""


class EventStream(Response):
    """Relays an open stream. Owns it and the settlement: both are closed when the call ends, however it ends."""

    def __init__(
        self, stream: OpenStream, settlement: Settlement, total_timeout_s: float, deadline_passed: asyncio.Event
    ) -> None:
        self.status_code = 200
        self.background = None
        self.raw_headers = list(STREAM_HEADERS)
        self._stream = stream
        self._settlement = settlement
        self._total_timeout_s = total_timeout_s
        self._deadline_passed = deadline_passed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pumping = asyncio.create_task(self._pump(send))
        watching = asyncio.create_task(gone(receive))
        editor = self._stream.editor
        outcome = Outcome.INTERNAL_ERROR
        try:
            # A client that does not read blocks `send` for as long as it likes: the wait has an end of its own.
            await asyncio.wait(
                {pumping, watching},
                return_when=asyncio.FIRST_COMPLETED,
                timeout=self._total_timeout_s + WRITE_GRACE_S,
            )
            if pumping.done():
                pumping.result()
                outcome = Outcome.OK if editor.ending is StreamEnd.COMPLETE else Outcome.STREAM_ERROR
            elif watching.done():
                # A client may close as soon as it has read `[DONE]`.
                outcome = Outcome.OK if editor.ending is StreamEnd.COMPLETE else Outcome.CLIENT_GONE
            else:
                outcome = Outcome.STREAM_ERROR
        finally:
            # Nothing here may wait before the upstream is closed: we may be cancelled ourselves.
            if not pumping.done() or outcome is Outcome.INTERNAL_ERROR:
                self._stream.close()
            self._settlement.usage = editor.usage
            self._settlement.timing = editor.timing
            self._settlement.close(outcome)
            await _stop(pumping, watching)

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        relaying = asyncio.ensure_future(self._relay(send))
        shutting_down = asyncio.ensure_future(self._deadline_passed.wait())
        try:
            await asyncio.wait(
                {relaying, shutting_down}, return_when=asyncio.FIRST_COMPLETED, timeout=self._total_timeout_s
            )
            if relaying.done():
                relaying.result()
            elif shutting_down.done():
                await self._fail(relaying, send, UpstreamErrorEvent(503, "this replica is shutting down"))
            else:
                reason = f"the answer took longer than {self._total_timeout_s:g} s"
                await self._fail(relaying, send, UpstreamErrorEvent(504, reason))
        finally:
            await _stop(relaying, shutting_down)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        await self._stream.finish()

    async def _relay(self, send: Send) -> None:
        await _body(send, self._stream.first)
        async for batch in self._stream.batches():
            await _body(send, batch)

    async def _fail(self, relaying: "asyncio.Future[None]", send: Send, error: UpstreamErrorEvent) -> None:
        await _stop(relaying)
        await _body(send, self._stream.editor.fail(error, StreamEnd.TRUNCATED))


def _body(send: Send, data: bytes) -> Awaitable[None]:
    return send({"type": "http.response.body", "body": data, "more_body": True})
