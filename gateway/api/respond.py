"""Answers to the client: the event stream, the wait for it, and what happens when the client has gone.

A stream is opened (failover, prefill) and relayed by the request's own task: a second one would have to be waited for, and
each wait is a turn of the event loop. What ends a wait from outside (the client, the replica's shutdown) brings the end of
that wait's time forward.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from enum import StrEnum
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.exchange import Exchange
from gateway.api.keep_alive import KeepAlive
from gateway.api.presence import ClientGone, Presence, Shutdown
from gateway.breaker import Ending
from gateway.envelope import PLAIN_SEND
from gateway.errors import ApiError, UpstreamTimeout
from gateway.guard.refusals import draining
from gateway.listener import WRITE_NOW
from gateway.metering.settle import Outcome, outcome_of_status
from gateway.relay.attempts import OpenStream, UnaryAnswer, WriteNow
from gateway.relay.limit import Limit
from gateway.relay.stream import Editor, StreamEnd, UpstreamErrorEvent

STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    # nginx and its relatives buffer a response unless told otherwise.
    "x-accel-buffering": "no",
}

KEEP_ALIVE = b": keep-alive\n\n"

WRITE_GRACE_S = 5.0
"""What a client may take, past the request's total time, to read the error event that says so."""

CLIENT_CLOSED_STATUS = 499
"""nginx's status for a client that left; nobody receives it, logs and metrics tell it from an answer."""


class Interruption(StrEnum):
    NONE = "none"
    CLIENT_GONE = "client_gone"
    SHUTTING_DOWN = "shutting_down"


async def unary(
    work: Coroutine[Any, Any, UnaryAnswer],
    presence: Presence,
    shutdown: Shutdown,
    deadline: float,
) -> UnaryAnswer:
    """The answer of `work`. Raises ClientGone, UpstreamTimeout at the deadline, Unavailable when the replica ends."""
    try:
        limit = Limit(deadline - time.monotonic())
        with limit, presence.when_gone(limit.end), shutdown.then(limit.end):
            return await work
    except TimeoutError as error:
        if presence.gone:
            raise ClientGone from error
        raise draining() if shutdown.has_come else UpstreamTimeout("The answer took too long.") from error


class JsonAnswer(Response):
    """Starlette's own builds the same headers anew from a mapping, through several more steps."""

    def __init__(self, body: bytes, headers: Mapping[str, str]) -> None:
        self.status_code = 200
        self.background = None
        self.body = body
        self.raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self.raw_headers.append((b"content-length", b"%d" % len(body)))
        self.raw_headers.append((b"content-type", b"application/json"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body})


class EventStream(Response):
    """Opens a stream and relays it. Owns it and the exchange: both are closed when the call ends, however it ends. Until
    something has been sent an error is the caller's to answer; from then on it is told inside the stream."""

    def __init__(
        self,
        open_stream: Callable[[], Awaitable[OpenStream]],
        exchange: Exchange,
        presence: Presence,
        shutdown: Shutdown,
        new_editor: Callable[[], Editor],
        *,
        deadline: float,
        keepalive_s: float,
    ) -> None:
        """`new_editor` makes one for a stream that fails before it began, to say so in its own words."""
        self.status_code = 200
        self.background = None
        self._open_stream = open_stream
        self._exchange = exchange
        self._presence = presence
        self._shutdown = shutdown
        self._deadline = deadline
        self._keepalive_s = keepalive_s
        self._stream: OpenStream | None = None
        self._new_editor = new_editor
        self._head_sent = False
        self._interruption = Interruption.NONE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ApiError where nothing has been sent."""
        plain_send = scope["state"].get(PLAIN_SEND, send)
        outcome = Outcome.INTERNAL_ERROR
        try:
            try:
                await self._interruptible(send, plain_send, scope.get(WRITE_NOW, _refused))
                outcome = self._outcome()
            except TimeoutError:
                outcome = await self._interrupted(scope, receive, send)
        except ApiError as error:
            outcome = outcome_of_status(error.status)
            if not self._head_sent:
                self._exchange.failed(outcome)
                error.more_headers.update(self._exchange.gate.headers())
                raise
            await self._fail(plain_send, UpstreamErrorEvent(error.status, error.message))
        except Exception:
            # A bug of ours. Who catches it tells of it; a client that has read half an answer must hear that it is none.
            if self._head_sent:
                await self._fail(plain_send, UpstreamErrorEvent(500, "something went wrong on our side"))
            raise
        finally:
            self._close(outcome)

    async def _interruptible(self, send_head: Send, send: Send, write_now: WriteNow) -> None:
        limit = Limit(self._deadline - time.monotonic())

        def end(why: Interruption) -> None:
            self._interruption = why
            limit.end()

        with (
            limit,
            self._presence.when_gone(lambda: end(Interruption.CLIENT_GONE)),
            self._shutdown.then(lambda: end(Interruption.SHUTTING_DOWN)),
        ):
            stream = await self._opened(send_head, send)
            await self._relay(stream, send_head, send, write_now)

    async def _opened(self, send_head: Send, send: Send) -> OpenStream:
        async def comment() -> None:
            await self._begin(send_head)
            await _body(send, KEEP_ALIVE)

        waiting = KeepAlive(self._keepalive_s, comment)
        try:
            stream = self._stream = await self._open_stream()
        finally:
            await waiting.end()
        return stream

    async def _begin(self, send_head: Send) -> None:
        if not self._head_sent:
            headers = {**STREAM_HEADERS, **self._exchange.gate.headers()}
            raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]
            await send_head({"type": "http.response.start", "status": self.status_code, "headers": raw_headers})
            self._head_sent = True

    async def _relay(self, stream: OpenStream, send_head: Send, send: Send, write_now: WriteNow) -> None:
        await self._begin(send_head)
        self._exchange.settlement.first_event()
        await _body(send, stream.first)
        last = b""
        async for batch in stream.batches(write_now):
            if stream.editor.closed:
                # What closes the stream and what closes the body leave together.
                last = batch
            else:
                await _body(send, batch)
        await send({"type": "http.response.body", "body": last, "more_body": False})
        await stream.finish()

    async def _interrupted(self, scope: Scope, receive: Receive, send: Send) -> Outcome:
        if self._interruption is Interruption.CLIENT_GONE:
            if not self._head_sent:
                await Response(status_code=CLIENT_CLOSED_STATUS)(scope, receive, send)
            # A client may close as soon as it has read `[DONE]`.
            complete = self._stream is not None and self._stream.editor.ending is StreamEnd.COMPLETE
            return Outcome.OK if complete else Outcome.CLIENT_GONE
        if self._stream is not None:
            # The engine is stopped before the client is told: that may take a client that does not read its time.
            self._stream.close()
        shutting_down = self._interruption is Interruption.SHUTTING_DOWN
        if not self._head_sent:
            raise draining() if shutting_down else UpstreamTimeout("The answer took too long.")
        if shutting_down:
            await self._fail(send, UpstreamErrorEvent(503, "this replica is shutting down"))
        else:
            await self._fail(send, UpstreamErrorEvent(504, "the answer took too long"))
        return Outcome.STREAM_ERROR

    async def _fail(self, send: Send, error: UpstreamErrorEvent) -> None:
        editor = self._stream.editor if self._stream is not None else self._new_editor()
        try:
            # A client that does not read blocks `send` for as long as it likes.
            async with asyncio.timeout(WRITE_GRACE_S):
                await _body(send, editor.fail(error, StreamEnd.TRUNCATED))
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            return

    def _outcome(self) -> Outcome:
        assert self._stream is not None
        return Outcome.OK if self._stream.editor.ending is StreamEnd.COMPLETE else Outcome.STREAM_ERROR

    def _close(self, outcome: Outcome) -> None:
        """Nothing here waits: we may be cancelled ourselves."""
        self._presence.close()
        stream = self._stream
        if stream is None:
            self._exchange.failed(outcome)
            return
        editor = stream.editor
        if editor.usage is not None:
            stream.ticket.correct(editor.usage.uncached_tokens)
        stream.ticket.close(_ending_of(editor, self._interruption, outcome))
        self._exchange.ended(outcome, editor.usage, editor.timing, stream.target.deployment.name)
        # Last, since closing a connection may fail.
        stream.close()


def _ending_of(editor: Editor, interruption: Interruption, outcome: Outcome) -> Ending:
    """What the stream's end says about its deployment. What we, or the client, cut short says nothing."""
    if editor.ending not in (None, StreamEnd.UPSTREAM_ERROR, StreamEnd.TRUNCATED):
        return Ending.SUCCEEDED
    if outcome is not Outcome.STREAM_ERROR or interruption is not Interruption.NONE:
        return Ending.CLIENT_GONE
    if editor.error is not None and editor.error.status == 504 and editor.ending is StreamEnd.TRUNCATED:
        return Ending.CLIENT_GONE
    if editor.ending is StreamEnd.UPSTREAM_ERROR and editor.error is not None:
        return Ending.BUSY if editor.error.status == 529 else Ending.UPSTREAM_ERROR
    return Ending.TRUNCATED_STREAM


def _refused(piece: bytes) -> bool:
    """Under a server whose answers only a task can write."""
    return False


async def _body(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
