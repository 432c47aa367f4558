"""Around every request: its id on the way in and out, and an error in the endpoint's shape for whatever was not
caught further in."""

import logging
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import ApiError, Internal
from gateway.telemetry.request_id import request_id_of

logger = logging.getLogger("gateway")

PLAIN_SEND = "plain_send"
"""Key of the scope's state: `send` as the server gave it, for what follows an answer's head. Nothing is added to it, and
a stream sends hundreds."""


class Envelope:
    """Pure ASGI: Starlette's own middleware class costs tasks and objects for every request."""

    def __init__(self, app: ASGIApp, body_of: Callable[[str, ApiError], dict[str, Any]]) -> None:
        """`body_of` a path and an error: each dialect has a shape of its own."""
        self._app = app
        self._body_of = body_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), None)
        request_id = request_id_of(given.decode("latin-1") if given is not None else None)
        state: dict[str, Any] = scope.setdefault("state", {})
        state["request_id"] = request_id
        state[PLAIN_SEND] = send
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            # The route and not the path, which may hold whatever a client puts there.
            route = state.get("route") or getattr(scope.get("route"), "path", None)
            logger.exception("unhandled error", extra={"request_id": request_id, "route": route})
            if started:
                raise
            error = Internal("Something went wrong on our side; the request id finds it in our logs.")
            body = msgspec.json.encode(self._body_of(scope["path"], error))
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send_with_id({"type": "http.response.start", "status": error.status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        finally:
            # The server's side of the request holds the scope: left here, this would be a ring for the garbage collector.
            del state[PLAIN_SEND]
