"""Connections to frontends, kept for the next request."""

import asyncio
import ssl
from collections import deque
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.relay.connection import Connection
from gateway.relay.turns import Turns

KEEPALIVE_SECONDS = 30.0
"""Idle connections to a frontend are kept this long: shorter than Dynamo's own close, so we do not race with it."""


class Origin(NamedTuple):
    host: str
    port: int
    tls: bool


class Address(NamedTuple):
    origin: Origin
    host_header: str
    path: str


@lru_cache(maxsize=4096)
def address_of(url: str) -> Address:
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    origin = Origin(parts.hostname or "", parts.port or (443 if tls else 80), tls)
    return Address(origin, parts.netloc.rpartition("@")[2], parts.path or "/")


class Pool:
    """The last used goes first, so that after a peak the rest grow old and go."""

    def __init__(self, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._turns = Turns()
        self._idle: dict[Origin, deque[Connection]] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._tls: ssl.SSLContext | None = None
        self._closed = False

    async def take(self, origin: Origin) -> Connection:
        """An idle connection, or a new one. Raises OSError and TimeoutError where none is to be had."""
        idle = self._idle.get(origin)
        if idle:
            oldest = asyncio.get_running_loop().time() - KEEPALIVE_SECONDS
            while idle:
                connection = idle.pop()
                if connection.closed:
                    continue
                if connection.idle_since >= oldest:
                    return connection
                connection.abort()
        return await self._connect(origin)

    def put(self, origin: Origin, connection: Connection) -> None:
        if self._closed:
            connection.abort()
            return
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.setdefault(origin, deque()).append(connection)
        if self._sweeping is None:
            self._sweeping = loop.call_later(KEEPALIVE_SECONDS, self._sweep)

    async def close(self) -> None:
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for idle in self._idle.values():
            for connection in idle:
                connection.abort()
        self._idle.clear()
        # Aborted transports tell their protocols in the loop's next turn.
        await asyncio.sleep(0)

    async def _connect(self, origin: Origin) -> Connection:
        loop = asyncio.get_running_loop()
        if origin.tls and self._tls is None:
            self._tls = ssl.create_default_context()
        async with asyncio.timeout(self._connect_timeout_s):
            _, connection = await loop.create_connection(
                lambda: Connection(loop, self._turns), origin.host, origin.port, ssl=self._tls if origin.tls else None
            )
        return connection

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        oldest = loop.time() - KEEPALIVE_SECONDS
        self._sweeping = None
        for origin, idle in list(self._idle.items()):
            while idle and (idle[0].closed or idle[0].idle_since < oldest):
                idle.popleft().abort()
            if not idle:
                del self._idle[origin]
        if self._idle:
            self._sweeping = loop.call_later(KEEPALIVE_SECONDS / 2, self._sweep)
