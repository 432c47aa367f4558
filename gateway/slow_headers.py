"""A client that sends its headers slowly, or connects and sends nothing, is cut off: each would hold a connection and its
buffers for as long as it likes. uvicorn's own timer begins only after a first answer.

The same protocol tells requests that their client has gone: without it each needs a task that waits for that."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

CLIENT_GONE = "prime.client_gone"
"""Key of a request's scope: a function without arguments, whose future is done when the connection has ended. To be asked
when the body has been read."""


def protocol_with(header_timeout_s: float) -> type[HttpToolsProtocol]:
    """uvicorn's protocol class, with a deadline from the connection, or a request's first byte, to its last header."""

    class Hurried(HttpToolsProtocol):
        _deadline: asyncio.TimerHandle | None = None
        _gone: "asyncio.Future[None]"

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._gone = self.loop.create_future()
            self._arm()

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)
            self._gone.set_result(None)

        def on_message_begin(self) -> None:
            self._arm()
            super().on_message_begin()
            self.scope[CLIENT_GONE] = self._client_gone  # type: ignore[literal-required]

        def on_headers_complete(self) -> None:
            self._disarm()
            super().on_headers_complete()

        def _client_gone(self) -> "asyncio.Future[None]":
            # A body that came faster than it was read has paused the socket, which then does not tell of its end.
            self.flow.resume_reading()
            return self._gone

        def _arm(self) -> None:
            if self._deadline is None:
                self._deadline = self.loop.call_later(header_timeout_s, self.transport.close)

        def _disarm(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return Hurried
