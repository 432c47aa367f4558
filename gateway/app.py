"""The two applications of a gateway process: the public API and the internal listener."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from gateway.admin import api as admin
from gateway.admin.desk import AdminDesk
from gateway.api import generate, health, internal, models
from gateway.api.direct import Direct, DirectApi
from gateway.api.document import document_of
from gateway.api.request import Endpoint
from gateway.console import page as console
from gateway.envelope import Envelope
from gateway.errors import ApiError, InvalidRequest, MethodNotAllowed, NotFound
from gateway.fleet.reload import FileWatch
from gateway.fleet.snapshot import load_snapshot
from gateway.guard.addresses import Addresses
from gateway.guard.guards import Guards
from gateway.guard.probe import Prober
from gateway.guard.site_guard import GuardSettings
from gateway.metering.settle_store import SettleStream
from gateway.relay.typed_stream import anthropic_error
from gateway.relay.upstream import Upstream
from gateway.settings import GatewaySettings
from gateway.state import GatewayState
from gateway.telemetry.guards import GuardCollector
from gateway.telemetry.metrics import Metrics
from gateway.toolcalls.desk import ToolDesk

if TYPE_CHECKING:
    from gateway.telemetry.spans import Tracing

LAST_SPANS_S = 5.0

API_PREFIX = "/api/v1"


@asynccontextmanager
async def gateway_state(settings: GatewaySettings) -> AsyncIterator[GatewayState]:
    """Everything a process holds, opened in order and closed in reverse. Raises FleetFileError, KeysFileError and
    SnapshotError."""
    snapshot, metrics = load_snapshot(settings.fleet_file, settings.keys_file), Metrics()
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(
            Upstream(connect_timeout_s=settings.connect_timeout_seconds, idle_timeout_s=settings.idle_timeout_seconds)
        )
        settle_stream = None
        addresses = Addresses.of(settings)
        if addresses.own is not None:
            settle_stream = await stack.enter_async_context(SettleStream(addresses.own, metrics))
        prober = Prober(upstream, lambda: state.snapshot, settings)
        guards = Guards(GuardSettings(headroom=settings.headroom), addresses, prober.probe)
        stack.push_async_callback(guards.close)
        tools = ToolDesk(metrics.registry)
        stack.push_async_callback(tools.close)
        state = GatewayState(settings, snapshot, metrics, upstream, guards, settle_stream, tools)
        if settings.otlp_endpoint is not None:
            state.tracing = _tracing(settings.otlp_endpoint, settings.trace_ratio)
            stack.push_async_callback(_flushed, state.tracing)
        await guards.follow(snapshot)
        tools.follow(snapshot.fleet)
        metrics.registry.register(GuardCollector(guards))
        watch = FileWatch(settings.fleet_file, settings.keys_file, state.take, metrics.reloaded)
        watching = asyncio.create_task(watch.run(settings.reload_seconds), name="file-watch")
        stack.push_async_callback(_stopped, watching)
        # Before the first request, so that a new replica sends none where nothing should go.
        await state.orders.look()
        hearing = asyncio.create_task(state.orders.run(settings.reload_seconds), name="orders-watch")
        stack.push_async_callback(_stopped, hearing)
        yield state


def _tracing(endpoint: str, ratio: float) -> "Tracing":
    from gateway.telemetry.spans import Tracing  # noqa: PLC0415 - an optional extra, and nothing to load when off

    return Tracing.exporting_to(endpoint, ratio)


async def _flushed(tracing: "Tracing") -> None:
    """What is left goes to the collector, as far as it answers soon."""
    closing = threading.Thread(target=tracing.close, name="last-spans", daemon=True)
    closing.start()
    until = time.monotonic() + LAST_SPANS_S
    while closing.is_alive() and time.monotonic() < until:  # noqa: ASYNC110 - a thread sets no event of ours
        await asyncio.sleep(0.05)


async def _stopped(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def public_app(state: GatewayState) -> FastAPI:
    app = DirectApi(
        title="Prime Inference",
        version="0.1.0",
        openapi_url=f"{API_PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        # A redirect names a scheme and a host that only the proxy before us knows: clients would be sent to plain HTTP.
        redirect_slashes=False,
    )
    app.state.gateway = state
    app.include_router(generate.router, prefix=API_PREFIX, tags=["generation"])
    app.include_router(models.router, prefix=API_PREFIX, tags=["models"])
    app.include_router(health.router, tags=["health"])
    app.openapi = document_of(app, API_PREFIX)  # type: ignore[method-assign]
    posts = {f"{API_PREFIX}/{endpoint.value}": answer for endpoint, answer in generate.ANSWERS.items()}
    app.answer_first(posts, Envelope(Direct(posts, _api_error), _body_of))
    return _finished(app)


def internal_app(state: GatewayState) -> FastAPI:
    app = FastAPI(title="Prime Inference, internal", openapi_url=None, docs_url=None, redoc_url=None)
    app.state.gateway = state
    app.state.admin = AdminDesk(state)
    app.include_router(health.router)
    app.include_router(internal.router)
    app.include_router(admin.router)
    app.include_router(console.router)
    return _finished(app)


def _finished(app: FastAPI) -> FastAPI:
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_middleware(Envelope, body_of=_body_of)
    return app


def _body_of(path: str, error: ApiError) -> dict[str, Any]:
    if path == f"{API_PREFIX}/{Endpoint.MESSAGES.value}":
        return anthropic_error(error.status, error.message)
    return error.body()


async def _api_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    body = _body_of(request.url.path, error)
    return JSONResponse(body, status_code=error.status, headers=error.headers())


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    """Starlette's own: an unknown route, a method that a route does not take."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path}"
    known: ApiError
    if error.status_code == 404:
        known = NotFound(f"Unknown route: {what}. The API lives under {API_PREFIX}.", code="unknown_route")
    elif error.status_code == 405:
        known = MethodNotAllowed(f"This route does not take this method: {what}.")
    else:
        known = InvalidRequest(str(error.detail))
    headers = {**known.headers(), **(error.headers or {})}
    return JSONResponse(_body_of(request.url.path, known), status_code=error.status_code, headers=headers)


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = ".".join(str(part) for part in first["loc"] if part != "body") or None
    return await _api_error(request, InvalidRequest(first["msg"], param=param, code="invalid_value"))
