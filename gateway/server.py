"""Serving: two listeners in one event loop, and the way down.

On SIGTERM or Ctrl-C: readiness goes off and new requests get a 503 that asks to be retried, on a port that stays open;
running requests may finish for `drain_seconds`; streams that have not by then end with an error event; then leases and
borrowed rate limits go back to the sites, and the process ends.

On SIGUSR1, with a socket that it was given (`listen_fd`): it takes no new connections, which are for the process that
serves on the same socket now, answers what comes on those it has, and goes down as above once they are closed.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import time
from collections.abc import Iterator

import uvicorn
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.app import gateway_state, internal_app, public_app
from gateway.listener import protocol_with
from gateway.settings import GatewaySettings
from gateway.state import GatewayState
from gateway.telemetry.logs import configure_logging, log_loop_error

logger = logging.getLogger("gateway")

BACKLOG_CONNECTIONS = 2048

YOUNG_OBJECTS = 10_000
"""New objects between two looks for garbage, some hundred requests'; reference counts free nearly all of it by then."""

DRAIN_LOOK_EVERY_S = 0.05
NOTICE_S = 1.0
"""An idle replica still answers "draining" this long, so that load balancers see it before connections are refused."""
LAST_WORDS_S = 2
"""Past the deadline, for error events to reach their clients."""


class PortInUse(Exception):
    """Another process listens there."""


class Server(uvicorn.Server):
    """One listener."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are this module's business: two servers would take them from each other."""
        yield


def server_for(app: ASGIApp, header_timeout_s: float) -> Server:
    return Server(
        uvicorn.Config(
            app,
            loop="none",
            http=protocol_with(header_timeout_s),
            lifespan="off",
            access_log=False,
            log_config=None,
            # Nothing here asks where a client is, and so nothing believes a header that says it.
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_graceful_shutdown=LAST_WORDS_S,
        )
    )


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises PortInUse."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise PortInUse(f"cannot listen on {host}:{port}: {error.strerror}") from error
    listener.listen(BACKLOG_CONNECTIONS)
    listener.setblocking(False)
    return listener


async def drain(state: GatewayState, public: Server) -> None:
    """Once draining has begun: wait for the running requests, at most to the deadline, and stop the public listener."""
    await state.draining.wait()
    state.guards.stop_admitting()
    deadline = time.monotonic() + state.settings.drain_seconds
    earliest_end = time.monotonic() + min(NOTICE_S, state.settings.drain_seconds)
    while time.monotonic() < deadline and (state.settlements or time.monotonic() < earliest_end):  # noqa: ASYNC110
        await asyncio.sleep(DRAIN_LOOK_EVERY_S)
    state.shutdown.come()
    public.should_exit = True


def spare_the_collector() -> None:
    """Modules, schemas and routes live as long as the process: looked through again with each full collection, they cost a
    twentieth of all CPU time under load."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)


def inherited(descriptor: int) -> socket.socket:
    """The socket that somebody else has bound. Raises PortInUse if it is none."""
    try:
        listener = socket.socket(fileno=descriptor)
    except OSError as error:
        raise PortInUse(f"descriptor {descriptor} is no socket: {error.strerror}") from error
    listener.setblocking(False)
    return listener


class HandingOver:
    """Around the public API of a process that has a successor: once asked, each answer tells its client to open another
    connection, which finds the successor."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.asked = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start" and self.asked.is_set():
                MutableHeaders(scope=message)["connection"] = "close"
            await send(message)

        await self._app(scope, receive, send_last)

    async def run(self, state: GatewayState, public: Server) -> None:
        """Once asked: what comes is the successor's; what has come is answered; a connection that is silent meanwhile
        is closed as ever, by the server's own time for silent ones."""
        await self.asked.wait()
        for listening in public.servers:
            listening.close()
        while public.server_state.connections:  # noqa: ASYNC110 - many connections end in as many ways
            await asyncio.sleep(DRAIN_LOOK_EVERY_S)
        state.draining.set()


async def serve(settings: GatewaySettings) -> None:
    """Serve until a signal. Raises PortInUse, FleetFileError, KeysFileError and SnapshotError before anything is served."""
    configure_logging(settings.log_level)
    given = settings.listen_fd
    public_socket = listen(settings.host, settings.port) if given is None else inherited(given)
    internal_socket = listen(settings.internal_host, settings.internal_port)
    async with gateway_state(settings) as state:
        public_api = HandingOver(public_app(state)) if given is not None else public_app(state)
        public = server_for(public_api, settings.header_timeout_seconds)
        internal = server_for(internal_app(state), settings.header_timeout_seconds)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_loop_error)
        spare_the_collector()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, state.draining.set)
        draining = [asyncio.create_task(drain(state, public))]
        if isinstance(public_api, HandingOver):
            loop.add_signal_handler(signal.SIGUSR1, public_api.asked.set)
            draining.append(asyncio.create_task(public_api.run(state, public)))
        logger.info("serving", extra={"address": f"{settings.host}:{settings.port}"})
        internal_task = asyncio.create_task(internal.serve([internal_socket]))
        try:
            await public.serve([public_socket])
        finally:
            for task in draining:
                task.cancel()
            internal.should_exit = True
            await internal_task
