"""A deployment that answers from a script: a real HTTP server on loopback, with a log of what arrived."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Script = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Upstream:
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    """Body and headers (names in lower case) of every request, in order."""
    open_requests: int = 0
    """Being answered now."""
    peers: set[object] = field(default_factory=set)
    """Addresses of the connections that requests came over."""
    gone: int = 0
    """Requests whose client left before the answer was complete."""


@asynccontextmanager
async def upstream(script: Script) -> AsyncIterator[Upstream]:
    """Serve POST on any path with `script` until the block ends."""
    deployment = Upstream()

    async def answer(request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        deployment.requests.append({"body": await request.json(), "headers": headers})
        deployment.open_requests += 1
        assert request.transport is not None
        deployment.peers.add(request.transport.get_extra_info("peername"))
        try:
            return await script(request)
        except (asyncio.CancelledError, ConnectionError):
            deployment.gone += 1
            raise
        finally:
            deployment.open_requests -= 1

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    deployment.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield deployment
    finally:
        await runner.cleanup()


def sends(*parts: bytes, status: int = 200, pause_s: float = 0.0) -> Script:
    """An event stream of these parts, each written on its own."""

    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for part in parts:
            await response.write(part)
            await asyncio.sleep(pause_s)
        return response

    return script


def answers(body: bytes, status: int = 200, pause_s: float = 0.0) -> Script:
    """One JSON body."""

    async def script(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(pause_s)
        return web.Response(body=body, status=status, content_type="application/json")

    return script


def hangs(*parts: bytes) -> Script:
    """An event stream that goes silent after these parts; without parts, a request that gets no answer."""

    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        if parts:
            await response.prepare(request)
        for part in parts:
            await response.write(part)
        await asyncio.Event().wait()
        return response

    return script


def breaks(*parts: bytes) -> Script:
    """An event stream whose connection is cut after these parts."""

    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for part in parts:
            await response.write(part)
        assert request.transport is not None
        request.transport.abort()
        return response

    return script
