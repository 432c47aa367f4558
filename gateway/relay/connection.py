"""One HTTP/1.1 connection to a frontend: a request at a time, its answer read as it arrives.

A client library costs a request more than the rest of the relay together (docs/adr/0307). Here the bytes are httptools'
(llhttp), the socket is the event loop's, and between them is only what a relay needs: the status, the body in the pieces
it came in, when it ended, and whether the connection may serve another request.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from gateway.relay.limit import after_a_look
from gateway.relay.turns import Turns

HELD_BYTES = 128 * 1024
"""The socket is paused when this much is unread: bounds what a slow client makes us hold for one stream."""

MAX_HEAD_BYTES = 64 * 1024
"""A frontend's status and headers; more is no frontend."""


Take = Callable[[bytes], bool]
"""Given what has come of a body; False when it wants no more for now."""


class Broken(Exception):
    """The connection ended, or said what is not HTTP, before the answer was complete."""


class Silent(Exception):
    """Nothing came for as long as was allowed."""


class Connection(asyncio.Protocol):
    """Idle until `send`; then `head` and `read` until that gives nothing; `reusable` says whether it may be sent to again.

    One task reads. Cancelled, it has lost nothing: what comes meanwhile is held for the next read. In place of `read`,
    `pour` hands on what comes without waking the task for each piece.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, turns: Turns) -> None:
        self._loop = loop
        self._turns = turns
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._held = 0
        self._paused = False
        self._waiter: asyncio.Future[bool] | None = None
        self._take: Take | None = None
        self._in_line = False
        self._waiting_since = 0.0
        self._silence: asyncio.TimerHandle | None = None
        self._silence_s: float | None = None
        self._failure: Broken | None = None
        self._busy = False
        self._complete = True
        self._head_bytes = 0
        self._framed = False
        self._encoded = False
        self._keep_alive = False
        self.closed = False
        self.status = 0
        self.idle_since = 0.0

    # ── the reader's side ──

    def send(self, request: bytes) -> None:
        """Raises Broken where the frontend has just closed it."""
        assert not self._busy, "one request at a time"
        if self._transport is None:
            raise Broken("closed")
        self._busy, self._complete, self._failure = True, False, None
        self.status = self._head_bytes = 0
        self._framed = self._encoded = False
        self._silence_s = None
        self._transport.write(request)

    async def head(self) -> int:
        """The status, when the headers are here. Raises Broken."""
        while not self.status:
            if self._failure is not None:
                raise self._failure
            await self._wait()
        return self.status

    async def read(self) -> bytes:
        """All that has come of the body since the last read; nothing at its end. Raises Broken and Silent."""
        while not self._parts:
            if self._complete:
                return b""
            if self._failure is not None:
                raise self._failure
            await self._wait()
        return self._taken()

    async def pour(self, take: Take) -> bool:
        """Hands what has come and what comes to `take`, in the event loop's turn. True when `take` has said that it wants
        no more for now, False at the body's end. Raises Broken, Silent, and what `take` raises."""
        while True:
            if self._parts:
                if not take(self._taken()):
                    return True
            elif self._complete:
                return False
            elif self._failure is not None:
                raise self._failure
            else:
                self._take = take
                try:
                    if await self._wait():
                        return True
                finally:
                    self._take = None

    def serve(self) -> None:
        """Its turn has come (turns.py): what is held goes to who takes it."""
        self._in_line = False
        waiter, take = self._waiter, self._take
        if take is None or waiter is None or waiter.done():
            # The reader has left, or been woken; it finds everything where it is.
            return
        if self._parts:
            self._waiting_since = self._loop.time()
            try:
                if not take(self._taken()):
                    waiter.set_result(True)
            except Exception as error:  # noqa: BLE001 - the reader's own code: its errors are the reader's
                waiter.set_exception(error)
        if not waiter.done() and (self._complete or self._failure is not None):
            waiter.set_result(False)

    def bound_silence(self, seconds: float) -> None:
        """From now on a read that waits this long raises Silent. Time between reads does not count."""
        self._silence_s = seconds

    def done(self) -> bool:
        """The answer's owner has finished with it. True where the connection may serve another request."""
        self._stop_counting()
        reusable = (
            self._complete
            and not self._parts
            and self._keep_alive
            and not self.closed
            and self._transport is not None
            # The answer may be here before all of the request has gone.
            and self._transport.get_write_buffer_size() == 0
        )
        self._busy = False
        return reusable

    def abort(self) -> None:
        """Ends it at once; the frontend sees the disconnect and cancels."""
        self._stop_counting()
        self.closed = True
        if self._transport is not None:
            self._transport.abort()

    def _taken(self) -> bytes:
        parts, self._parts, self._held = self._parts, [], 0
        if self._paused:
            self._paused = False
            if self._transport is not None:
                self._transport.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _wait(self) -> bool:
        """Until something has come; True where it was handed on already and that was enough."""
        waiter = self._waiter = self._loop.create_future()
        if self._silence_s is not None:
            self._waiting_since = self._loop.time()
            if self._silence is None:
                self._silence = self._loop.call_later(self._silence_s, self._silence_due)
        try:
            woken: bool = await waiter
            return woken
        finally:
            self._waiter = None

    def _silence_due(self) -> None:
        """One timer for many reads: it asks how long the present one has waited, and looks again when that can be enough."""
        counting = self._silence
        after_a_look(lambda: self._look_for_silence(counting))

    def _look_for_silence(self, counting: asyncio.TimerHandle | None) -> None:
        if counting is not self._silence:
            # Meanwhile the answer has ended, and perhaps the next is counted.
            return
        self._silence = None
        waiter = self._waiter
        if waiter is None or waiter.done() or self._silence_s is None:
            return
        # What has come and waits for its turn is no silence.
        since = self._loop.time() if self._in_line else self._waiting_since
        left_s = since + self._silence_s - self._loop.time()
        if left_s <= 0:
            waiter.set_exception(Silent())
        else:
            self._silence = self._loop.call_later(left_s, self._silence_due)

    def _stop_counting(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _wake(self) -> None:
        if self._take is not None:
            if not self._in_line:
                self._in_line = True
                self._turns.add(self)
            return
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(False)

    # ── the socket's side ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._busy or self._complete:
            # An answer that nobody asked for: whose it is cannot be known.
            self.abort()
            return
        if not self.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"not HTTP ({type(error).__name__})")
            return
        if not self.status and self._head_bytes > MAX_HEAD_BYTES:
            self._fail("headers without an end")
        elif self._held > HELD_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self._busy and not self._complete:
            if self.status and not self._framed and exc is None:
                # Neither a length nor chunks: such a body ends with its connection.
                self._complete = True
            else:
                self._failure = self._failure or Broken(type(exc).__name__ if exc is not None else "closed")
        self._transport = None
        self._wake()

    def _fail(self, why: str) -> None:
        self._failure = Broken(why)
        self.abort()
        self._wake()

    # ── httptools' callbacks ──

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._framed = True
        elif name == b"content-encoding" and value.lower() != b"identity":
            # We ask for none.
            self._encoded = True

    def on_headers_complete(self) -> None:
        status: int = self._parser.get_status_code()
        if status < 200:
            # 100 and 103 only say that an answer is coming.
            self._framed = self._encoded = False
        elif self._encoded:
            self._failure = Broken("a compressed answer")
        else:
            self.status = status

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)
        self._held += len(data)

    def on_message_complete(self) -> None:
        if self.status:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()
