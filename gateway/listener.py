"""The listeners' side of a client's connection: uvicorn's protocol, with what it lacks.

- A client that sends its headers slowly, or connects and sends nothing, is cut off: each would hold a connection and its
  buffers for as long as it likes. uvicorn's own timer begins only after a first answer.
- A head has a size: without one, whoever can connect could have as much memory as fits into the time for headers.
- Requests are told when their client has gone; else each needs a task that waits for that.
- An answer's headers leave with the beginning of its body: a system call less for each.
- A piece of a streamed body can be sent without a task: each would be woken for every event of its stream.
"""

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.errors import HeadersTooLarge

CLIENT_GONE = "prime.client_gone"
"""Key of a request's scope: a function without arguments, whose future is done when the connection has ended. To be asked
when the body has been read."""

WRITE_NOW = "prime.write_now"
"""Key of a request's scope: a function that sends a piece of a streamed body, once its head has been sent. False where the
client does not read what it was sent before, or has gone: then nothing is sent, and `send` is to be used, which waits."""


MOST_HEAD_BYTES = 64 * 1024
"""A request's line and headers. SDKs send 1 to 2 KB; proxies in front of us add some more."""


def protocol_with(header_timeout_s: float) -> type[HttpToolsProtocol]:
    """uvicorn's protocol class, with a deadline from the connection, or a request's first byte, to its last header."""

    class Listener(HttpToolsProtocol):
        _deadline: asyncio.TimerHandle | None = None
        _in_headers = False
        _head_bytes = 0
        _gone: "asyncio.Future[None]"
        transport: "HeadHolder"

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.transport = HeadHolder(transport, self.loop)
            self._gone = self.loop.create_future()
            self._arm()

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            self._gone.set_result(None)
            self.transport.forget()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._in_headers:
                self._head_bytes += len(data)
                if self._head_bytes > MOST_HEAD_BYTES:
                    self._refuse_head()
                else:
                    self._arm()

        def on_message_begin(self) -> None:
            self._in_headers = True
            self._head_bytes = 0
            super().on_message_begin()
            self.scope[CLIENT_GONE] = self._client_gone  # type: ignore[literal-required]
            self.scope[WRITE_NOW] = self._write_now  # type: ignore[literal-required]

        def on_headers_complete(self) -> None:
            self._in_headers = False
            self._disarm()
            super().on_headers_complete()

        def _client_gone(self) -> "asyncio.Future[None]":
            # A body that came faster than it was read has paused the socket, which then does not tell of its end.
            self.flow.resume_reading()
            return self._gone

        def _write_now(self, piece: bytes) -> bool:
            cycle = self.cycle
            # With another request behind it in the pipeline, the cycle here would be that one's.
            if self.flow.write_paused or cycle.disconnected or not cycle.chunked_encoding or self.pipeline:
                return False
            self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            return True

        def _refuse_head(self) -> None:
            # Behind an answer that still runs nothing else may be said.
            if self.cycle is None or self.cycle.response_complete:
                error = HeadersTooLarge(f"The request's headers are larger than {MOST_HEAD_BYTES} bytes.")
                body = msgspec.json.encode(error.body())
                head = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n"
                fields = b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
                self.transport.write(head + fields + body)
            self.transport.close()

        def _arm(self) -> None:
            if self._deadline is None:
                self._deadline = self.loop.call_later(header_timeout_s, self.transport.close)

        def _disarm(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Listener


class HeadHolder(asyncio.Transport):
    """A transport that holds an answer's head until its body begins, or to the end of the event loop's turn."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: Any) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif data.startswith(b"HTTP/1.1 "):
            self._head = data
            self._loop.call_soon(self._let_go)
            return
        self._transport.write(data)

    def _let_go(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def forget(self) -> None:
        """There is nobody to send it to any more."""
        self._head = b""

    def close(self) -> None:
        self._let_go()
        self._transport.close()

    def abort(self) -> None:
        self.forget()
        self._transport.abort()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._transport.set_protocol(protocol)
