"""Answers to the client: the event stream, the wait for it, and what happens when the client has gone.

A stream costs a task beside its own, which opens it (failover, prefill). What ends a wait from outside (the
client, the replica's shutdown) brings the end of that wait's time forward.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from enum import StrEnum
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.api.exchange import Exchange
from gateway.api.presence import ClientGone, Presence, Shutdown
from gateway.breaker import Ending
from gateway.envelope import PLAIN_SEND
from gateway.errors import ApiError, UpstreamTimeout
from gateway.guard.refusals import draining
from gateway.metering.settle import Outcome, outcome_of_status
from gateway.relay.attempts import OpenStream, UnaryAnswer
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

Opening = asyncio.Task[OpenStream]


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


async def opened(opening: Opening, presence: Presence, within_s: float) -> None:
    """Waits until the stream has begun, at most `within_s`. Raises what opening it raised, and ClientGone."""
    try:
        with presence.when_gone(opening.cancel):
            await asyncio.wait({opening}, timeout=within_s)
        if opening.cancelled():
            raise ClientGone
        if opening.done():
            opening.result()
    except BaseException:
        # Also cancelled here: nobody else would end what is opening, or has just opened.
        opening.cancel()
        if (stream := _just_opened(opening)) is not None:
            stream.ticket.close(Ending.CLIENT_GONE)
            stream.close()
        raise


def _just_opened(opening: Opening) -> OpenStream | None:
    if not opening.done() or opening.cancelled() or opening.exception() is not None:
        return None
    return opening.result()


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
    """Relays a stream that has begun or is beginning. Owns it and the exchange: both are closed when the call ends,
    however it ends."""

    def __init__(
        self,
        opening: Opening,
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
        headers = {**STREAM_HEADERS, **exchange.gate.headers()}
        self.raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._opening = opening
        self._exchange = exchange
        self._presence = presence
        self._shutdown = shutdown
        self._deadline = deadline
        self._keepalive_s = keepalive_s
        self._stream: OpenStream | None = None
        self._new_editor = new_editor
        self._interruption = Interruption.NONE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outcome = Outcome.INTERNAL_ERROR
        try:
            try:
                await self._interruptible(send, scope["state"].get(PLAIN_SEND, send))
                outcome = self._outcome()
            except TimeoutError:
                outcome = await self._interrupted(send)
            except ApiError as error:
                # Keep-alive comments have gone out, so that this can only be said inside the stream.
                outcome = outcome_of_status(error.status)
                await self._fail(send, UpstreamErrorEvent(error.status, error.message))
        finally:
            self._close(outcome)

    async def _interruptible(self, send: Send, plain_send: Send) -> None:
        limit = Limit(self._deadline - time.monotonic())

        def end(why: Interruption) -> None:
            self._interruption = why
            limit.end()

        with (
            limit,
            self._presence.when_gone(lambda: end(Interruption.CLIENT_GONE)),
            self._shutdown.then(lambda: end(Interruption.SHUTTING_DOWN)),
        ):
            await self._relay(send, plain_send)

    async def _relay(self, send_head: Send, send: Send) -> None:
        await send_head({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while not self._opening.done():
            await _body(send, KEEP_ALIVE)
            await asyncio.wait({self._opening}, timeout=self._keepalive_s)
        stream = self._stream = self._opening.result()
        self._exchange.settlement.first_event()
        await _body(send, stream.first)
        async for batch in stream.batches():
            await _body(send, batch)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        await stream.finish()

    async def _interrupted(self, send: Send) -> Outcome:
        if self._interruption is Interruption.CLIENT_GONE:
            # A client may close as soon as it has read `[DONE]`.
            complete = self._stream is not None and self._stream.editor.ending is StreamEnd.COMPLETE
            return Outcome.OK if complete else Outcome.CLIENT_GONE
        if self._stream is not None:
            # The engine is stopped before the client is told: that may take a client that does not read its time.
            self._stream.close()
        if self._interruption is Interruption.SHUTTING_DOWN:
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
        # It may have opened in the very moment in which the client left.
        stream = self._stream or _just_opened(self._opening)
        if stream is None:
            self._opening.cancel()
            self._exchange.failed(outcome)
            return
        editor = stream.editor
        if editor.usage is not None:
            stream.ticket.correct(editor.usage.uncached_tokens)
        stream.ticket.close(_ending_of(editor, self._interruption, outcome))
        self._exchange.ended(outcome, editor.usage, editor.timing, stream.target.deployment.name)
        # Last, since closing a connection may fail.
        if editor.ending is not StreamEnd.COMPLETE or outcome is Outcome.INTERNAL_ERROR:
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


async def _body(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
