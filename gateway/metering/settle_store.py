"""Settle records into a Valkey stream, written behind the requests: a slow Valkey never delays an answer.

Records are gathered for a moment and leave together, an entry each, in one trip: a trip a record cost a request more than
everything else about it did. A process that is killed loses what it has gathered and what is under way; both are in the
log.
"""

import asyncio
import logging
from collections import deque
from itertools import islice
from types import TracebackType
from typing import Any, Self, cast

import msgspec
import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.metering.settle import SettleRecord
from gateway.site.valkey_store import SiteAddress
from gateway.telemetry.metrics import Metrics

logger = logging.getLogger("gateway.metering")

STREAM = "prime:settle"
MAX_STREAM_RECORDS = 1_000_000
"""The durable store reads the stream; without a reader it stays below about 500 MB."""
MAX_QUEUED_RECORDS = 10_000
"""A Valkey that is away for a minute at 150 requests/s loses nothing; past that, records stay in the log only."""
GATHER_S = 0.02
"""A killed process loses this much more, and fifty trips a second are nothing to a Valkey."""
MAX_RECORDS_A_TRIP = 256
"""About 100 kB: half a millisecond of Valkey's only thread."""
OPERATION_TIMEOUT_S = 1.0
RETRY_PAUSE_S = 1.0

ADD_ALL = f"""
for _, record in ipairs(ARGV) do
  redis.call('XADD', KEYS[1], 'MAXLEN', '~', {MAX_STREAM_RECORDS}, '*', 'record', record)
end
"""
"""Not exempt from Valkey's memory limit: a full one refuses all of a trip before the first entry."""

_encode = msgspec.json.Encoder().encode


class SettleStream:
    """Owns one background task, which writes what `keep` queues."""

    def __init__(self, address: SiteAddress, metrics: Metrics) -> None:
        self._sentinel: Sentinel | None = None
        self._client = self._connect(address)
        self._add_all = self._client.register_script(ADD_ALL)
        self._queue: deque[SettleRecord] = deque()
        self._kept = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._metrics = metrics
        self._task: asyncio.Task[None] | None = None

    def keep(self, record: SettleRecord) -> None:
        if len(self._queue) >= MAX_QUEUED_RECORDS:
            self._metrics.settle_lost.inc()
            return
        if not self._queue:
            self._empty.clear()
            self._kept.set()
        self._queue.append(record)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._write(), name="settle-stream")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            async with asyncio.timeout(OPERATION_TIMEOUT_S):
                await self._empty.wait()
        except TimeoutError:
            self._metrics.settle_lost.inc(len(self._queue))
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._client.aclose()
        if self._sentinel is not None:
            for each in self._sentinel.sentinels:
                await each.aclose()

    def _connect(self, address: SiteAddress) -> redis.Redis:
        """With Sentinels, each new connection asks them for the primary: after a failover the next try finds it."""
        options: dict[str, Any] = {
            "username": address.username,
            "password": address.password,
            "socket_connect_timeout": OPERATION_TIMEOUT_S,
            "socket_timeout": OPERATION_TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0),
            # Else each new connection looks the library's version up in its package, on the event loop, and tells it.
            "driver_info": None,
        }
        if not address.sentinels:
            return redis.Redis(host=address.host, port=address.port, ssl=address.tls, **options)
        self._sentinel = Sentinel(address.sentinels, sentinel_kwargs=options, **options)  # type: ignore[no-untyped-call]
        return cast("redis.Redis", self._sentinel.master_for(address.primary_name, ssl=address.tls))

    async def _write(self) -> None:
        queue = self._queue
        while True:
            await self._kept.wait()
            await asyncio.sleep(GATHER_S)
            while queue:
                # They stay in the queue until they are written, so that it bounds all that is held.
                count = min(len(queue), MAX_RECORDS_A_TRIP)
                records = [_encode(record) for record in islice(queue, count)]
                while not await self._add(records):  # noqa: ASYNC110 - waits for another process, which sets no event
                    await asyncio.sleep(RETRY_PAUSE_S)
                for _ in range(count):
                    queue.popleft()
                if 0 < len(queue) < MAX_RECORDS_A_TRIP:
                    await asyncio.sleep(GATHER_S)
            self._kept.clear()
            self._empty.set()

    async def _add(self, records: list[bytes]) -> bool:
        try:
            await self._add_all(keys=[STREAM], args=records)
        except (RedisError, OSError) as error:
            logger.warning("settle records not written, trying again", extra={"error": type(error).__name__})
            if self._sentinel is not None:
                # The connection may be to a former primary: the next one asks the Sentinels again.
                await self._client.connection_pool.disconnect()
            return False
        return True
