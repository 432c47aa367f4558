"""The one client of a site's Valkey in this process.

Law of a trip: it answers within its time or raises `SiteUnavailable`; it is sent once (the client library's default
retries turn half a second of silence into nine); a cancelled request never leaves a half-read answer behind, because
the trip runs in a task of its own that only Valkey's answer or the socket's timeout ends.

A script that Valkey does not know (it restarted, or another primary took over) is sent in full, within the same time:
the refused EVALSHA did nothing, so this repeats no work.
"""

import asyncio
import hashlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, cast

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import MasterDownError, NoScriptError, OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig

from gateway.site.errors import SiteUnavailable, Trouble
from gateway.site.link import Link
from gateway.site.trip_budget import Patience

MAX_CONNECTIONS = 32
"""Trips are batched (one in flight a deployment), so a handful is used; more than this at once is trouble."""

SUBSCRIBE_WAIT_S = 0.5
"""How long the listener waits for a push before it looks whether the connection still lives."""

OWN_STALL_S = 0.25
"""A timeout noticed this late says that this process did not run (paused, or starved), and nothing about Valkey."""

REFUSING_CODES = ("OOM", "BUSY", "MISCONF", "MASTERDOWN", "NOREPLICAS", "READONLY")
"""Error codes by which a Valkey says that it cannot serve now. Any other error is a bug here, and propagates."""


@dataclass(frozen=True)
class SiteAddress:
    """Where a site's Valkey is: either one server, or Sentinels that know the primary by name."""

    host: str = "127.0.0.1"
    port: int = 6379
    sentinels: tuple[tuple[str, int], ...] = ()
    primary_name: str = ""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False


SCRIPT_HEADER = "#!lua flags=allow-oom\n"


class Script:
    """Lua text and the digest Valkey knows it by."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    @classmethod
    def load(cls, *parts: tuple[str, str]) -> "Script":
        """Joins (package, file) parts, in order, behind the one header that lets them run on a full Valkey.

        Our scripts overwrite a few small keys; refusing them when other data has filled the memory would free none.
        """
        body = "\n".join(files(package).joinpath(name).read_text() for package, name in parts)
        return cls(SCRIPT_HEADER + body)


KNOCK = Script(SCRIPT_HEADER + "return 1")
"""A Valkey that is full, read-only or without its replicas answers PING and refuses scripts: this is refused then, too."""


class SiteValkey:
    def __init__(
        self, name: str, address: SiteAddress, prefix: str = "prime", patience: Patience | None = None
    ) -> None:
        self.name = name
        self.prefix = prefix
        self._patience = patience or Patience()
        self.link = Link()
        self.trips = 0
        self.troubles: Counter[Trouble] = Counter()
        """Trips that were sent and brought no answer, by why."""
        self._running: set[asyncio.Task[Any]] = set()
        self._sentinel: Sentinel | None = None
        self._redis = self._connect(address)

    def key(self, *parts: str) -> str:
        """Of the Valkey: all sites that share one have it in common."""
        return ":".join((self.prefix, *parts))

    def own_key(self, *parts: str) -> str:
        """Of this site alone, whoever else keeps his in the same Valkey."""
        return self.key("site", self.name, *parts)

    async def run(
        self, script: Script, keys: Sequence[str], args: Sequence[str | int], within_s: float | None = None
    ) -> Any:
        """One trip. Raises SiteUnavailable; the answer is Valkey's, undecoded (bytes, ints, lists).

        `within_s` is what is left of a request's budget; without it nobody waits and the trip is a background one.
        """
        if not self.link.is_up:
            raise SiteUnavailable(Trouble.LINK_DOWN)
        if within_s is not None and within_s <= 0:
            raise SiteUnavailable(Trouble.BUDGET_SPENT)
        patience_s = self._patience.background_s if within_s is None else min(within_s, self._patience.request_s)
        return await self._bounded(lambda: self._evaluate(script, keys, args), patience_s)

    async def keep_link(self) -> None:
        """Background task: while the link is down, the only one to knock."""
        while True:
            if self.link.is_up:
                await asyncio.sleep(0.02)
                continue
            await asyncio.sleep(self.link.probe_due_in_s(time.monotonic()))
            try:
                await self._bounded(lambda: self._evaluate(KNOCK, [], []), self._patience.request_s)
            except SiteUnavailable:
                continue

    async def listen(self, channels: Sequence[str], on_message: Callable[[str, str], None]) -> None:
        """Background task: hands each push to `on_message(channel, payload)`. Pushes may be lost; callers also poll.

        A subscription is silent by nature, so a dead one looks like a quiet one: when the link has been down and is
        back, it is made anew.
        """
        while True:
            _raise_if_cancelled()
            generation = self.link.generation
            pubsub = self._redis.pubsub(ignore_subscribe_messages=True)
            try:
                await pubsub.subscribe(*channels)
                while self.link.generation == generation:
                    _raise_if_cancelled()
                    message = await pubsub.get_message(timeout=SUBSCRIBE_WAIT_S)
                    if message is not None and message["type"] == "message":
                        on_message(message["channel"].decode(), message["data"].decode())
            except (RedisConnectionError, RedisTimeoutError, ReadOnlyError, OSError):
                await asyncio.sleep(SUBSCRIBE_WAIT_S * (0.5 + random.random()))
            finally:
                await pubsub.aclose()  # type: ignore[no-untyped-call]

    async def close(self) -> None:
        if self._running:
            await asyncio.wait(self._running)
        await self._redis.aclose()
        if self._sentinel is not None:
            for sentinel in self._sentinel.sentinels:
                await sentinel.aclose()

    def _connect(self, address: SiteAddress) -> "Redis":
        options: dict[str, Any] = {
            "username": address.username,
            "password": address.password,
            # Ends a trip whose caller has fallen back, so that its late answer is never read as another's.
            "socket_timeout": self._patience.background_s,
            "socket_connect_timeout": self._patience.background_s,
            "retry": Retry(NoBackoff(), 0),
            # Else each new connection looks the library's version up in its package, on the event loop, and tells it.
            "driver_info": None,
            "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        }
        if address.sentinels:
            self._sentinel = Sentinel(address.sentinels, sentinel_kwargs=options, **options)  # type: ignore[no-untyped-call]
            return cast(
                Redis, self._sentinel.master_for(address.primary_name, max_connections=MAX_CONNECTIONS, ssl=address.tls)
            )
        scheme = "rediss" if address.tls else "redis"
        pool = ConnectionPool.from_url(
            f"{scheme}://{address.host}:{address.port}", max_connections=MAX_CONNECTIONS, **options
        )
        return Redis.from_pool(pool)

    async def _evaluate(self, script: Script, keys: Sequence[str], args: Sequence[str | int]) -> Any:
        try:
            return await self._command("EVALSHA", script.sha, len(keys), *keys, *args)
        except NoScriptError:
            return await self._command("EVAL", script.text, len(keys), *keys, *args)

    async def _command(self, *words: str | int) -> Any:
        return await self._redis.execute_command(*words)  # type: ignore[no-untyped-call]

    async def _bounded(self, trip: Callable[[], Awaitable[Any]], within_s: float) -> Any:
        self.trips += 1
        started = time.monotonic()
        task = asyncio.ensure_future(self._translated(trip))
        self._running.add(task)
        task.add_done_callback(self._finished)
        try:
            async with asyncio.timeout(within_s):
                answer = await asyncio.shield(task)
        except TimeoutError:
            timeout = SiteUnavailable(Trouble.TIMEOUT)
            if time.monotonic() - started > within_s + OWN_STALL_S:
                self.troubles[Trouble.TIMEOUT] += 1
                raise timeout from None
            raise self._failed(timeout) from None
        except SiteUnavailable as error:
            raise self._failed(error) from error.__cause__
        if time.monotonic() - started <= self._patience.request_s:
            # A background trip may be slower than a request would bear: no failure, but no sign of health either.
            self.link.succeeded()
        return answer

    async def _translated(self, trip: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await trip()
        except (ReadOnlyError, MasterDownError) as error:
            # A demoted primary: drop its connections, so that the next one asks Sentinel again.
            await self._redis.connection_pool.disconnect(inuse_connections=False)
            raise SiteUnavailable(Trouble.REFUSING, str(error)) from error
        except RedisTimeoutError as error:
            raise SiteUnavailable(Trouble.TIMEOUT, str(error)) from error
        except RedisConnectionError as error:
            raise SiteUnavailable(Trouble.CONNECTION, str(error)) from error
        except ResponseError as error:
            if isinstance(error, OutOfMemoryError) or str(error).startswith(REFUSING_CODES):
                raise SiteUnavailable(Trouble.REFUSING, str(error)) from error
            raise

    def _failed(self, error: SiteUnavailable) -> SiteUnavailable:
        self.troubles[error.trouble] += 1
        self.link.failed(time.monotonic(), random.random())
        error.link_is_down = not self.link.is_up
        return error

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Looked at here: the caller may have fallen back already, and nobody else would.
            task.exception()


def _raise_if_cancelled() -> None:
    """On Python 3.11 `asyncio.wait_for`, which the client library sends with, may swallow a cancellation that comes as
    it finishes; a listener would then outlive its process's shutdown."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
