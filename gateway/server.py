"""Serving: two listeners in one event loop, and the way down.

On SIGTERM or Ctrl-C: readiness goes off and new requests get a 503 that asks to be retried, on a port that stays open;
running requests may finish for `drain_seconds`; streams that have not by then end with an error event; then leases and
borrowed rate limits go back to the sites, and the process ends.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import time
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI

from gateway.app import gateway_state, internal_app, public_app
from gateway.settings import GatewaySettings
from gateway.slow_headers import protocol_with
from gateway.state import GatewayState
from gateway.telemetry.logs import configure_logging, log_loop_error

logger = logging.getLogger("gateway")

BACKLOG_CONNECTIONS = 2048

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


def server_for(app: FastAPI, header_timeout_s: float) -> Server:
    return Server(
        uvicorn.Config(
            app,
            loop="none",
            http=protocol_with(header_timeout_s),
            lifespan="off",
            access_log=False,
            log_config=None,
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
    state.deadline_passed.set_result(None)
    public.should_exit = True


async def serve(settings: GatewaySettings) -> None:
    """Serve until a signal. Raises PortInUse, FleetFileError, KeysFileError and SnapshotError before anything is served."""
    configure_logging(settings.log_level)
    public_socket = listen(settings.host, settings.port)
    internal_socket = listen(settings.internal_host, settings.internal_port)
    async with gateway_state(settings) as state:
        public = server_for(public_app(state), settings.header_timeout_seconds)
        internal = server_for(internal_app(state), settings.header_timeout_seconds)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_loop_error)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, state.draining.set)
        draining = asyncio.create_task(drain(state, public))
        logger.info("serving", extra={"address": f"{settings.host}:{settings.port}"})
        internal_task = asyncio.create_task(internal.serve([internal_socket]))
        try:
            await public.serve([public_socket])
        finally:
            draining.cancel()
            internal.should_exit = True
            await internal_task
