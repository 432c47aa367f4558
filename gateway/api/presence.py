"""Whether the client is still there: what ends whatever the request waits for when it has gone.

The listener's protocol tells (gateway/listener.py), at no cost until it happens. Under another server, a task a request asks.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from starlette.requests import Request
from starlette.types import Receive

from gateway.listener import CLIENT_GONE


class ClientGone(Exception):
    """The client closed the connection before the answer began."""


class When:
    """While the block runs: calls once when the future is done, also when it was before."""

    def __init__(self, future: "asyncio.Future[Any]", call: Callable[[], object]) -> None:
        self._future = future
        self._call = call

    def _tell(self, future: "asyncio.Future[Any]") -> None:
        if not future.cancelled():
            # An error of the connection itself also means that nobody is there; looked at so that it is not logged.
            future.exception()
            self._call()

    def __enter__(self) -> Self:
        self._future.add_done_callback(self._tell)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._future.remove_done_callback(self._tell)


class Presence:
    """The request's body must have been read."""

    def __init__(self, request: Request) -> None:
        gone: Callable[[], asyncio.Future[None]] | None = request.scope.get(CLIENT_GONE)
        self._asking: asyncio.Future[None] | None = None
        self._watching: asyncio.Future[None]
        if gone is None:
            self._asking = asyncio.ensure_future(_gone(request.receive))
            self._watching = self._asking
        else:
            self._watching = gone()

    @property
    def gone(self) -> bool:
        return self._watching.done()

    def when_gone(self, call: Callable[[], object]) -> When:
        return When(self._watching, call)

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
