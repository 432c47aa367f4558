"""The generation endpoints, answered before FastAPI's routing.

FastAPI finds a route, opens exit stacks and resolves dependencies for every request: of the gateway's own time that was a
third, for endpoints that take the request as it is (docs/adr/0307). The routes stay registered there as well: for the
OpenAPI document, and for every method and path that is not exactly one of these.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import ApiError

Answer = Callable[[Request], Awaitable[Response]]
AnswerError = Callable[[Request, ApiError], Awaitable[Response]]


class IndexedHeaders(Headers):
    """Looked into several times a request: Starlette's own compare every name each time, and raise for one not there."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope=scope)
        # Of a name given twice the first counts, as there.
        self._by_name = dict(reversed(self._list))

    def get(self, key: str, default: Any = None) -> Any:
        value = self._by_name.get(key.lower().encode("latin-1"))
        return default if value is None else value.decode("latin-1")


class DirectRequest(Request):
    @property
    def headers(self) -> Headers:
        if not hasattr(self, "_headers"):
            self._headers = IndexedHeaders(self.scope)
        return self._headers


class Direct:
    """ASGI. `posts` holds the endpoints by path; it is asked for no other path."""

    def __init__(self, posts: Mapping[str, Answer], on_error: AnswerError) -> None:
        self._posts = posts
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"]["route"] = scope["path"]
        request = DirectRequest(scope, receive)
        try:
            response = await self._posts[scope["path"]](request)
            # A stream is opened here, and raises only as long as it has sent nothing.
            await response(scope, receive, send)
        except ApiError as error:
            response = await self._on_error(request, error)
            await response(scope, receive, send)


class DirectApi(FastAPI):
    """A FastAPI application that hands what `answer_first` names to an ASGI application of its own: past FastAPI's,
    Starlette's and its outermost middleware's turn, of which each would also be woken with every event of a stream."""

    def answer_first(self, paths: Iterable[str], application: ASGIApp) -> None:
        """POSTs at exactly these paths."""
        self._first = application
        self._first_paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._first_paths:
            scope["app"] = self
            await self._first(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)
