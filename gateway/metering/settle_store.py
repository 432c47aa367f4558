"""Settle records into a Valkey stream, written behind the requests: a slow Valkey never delays an answer."""

import asyncio
import logging
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
OPERATION_TIMEOUT_S = 1.0
RETRY_PAUSE_S = 1.0


class SettleStream:
    """Owns one background task, which writes what `keep` queues."""

    def __init__(self, address: SiteAddress, metrics: Metrics) -> None:
        self._sentinel: Sentinel | None = None
        self._client = self._connect(address)
        self._queue: asyncio.Queue[SettleRecord] = asyncio.Queue(MAX_QUEUED_RECORDS)
        self._metrics = metrics
        self._unwritten = 0
        self._task: asyncio.Task[None] | None = None

    def keep(self, record: SettleRecord) -> None:
        try:
            self._queue.put_nowait(record)
        except asyncio.QueueFull:
            self._metrics.settle_lost.inc()
        else:
            self._unwritten += 1

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._write(), name="settle-stream")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            async with asyncio.timeout(OPERATION_TIMEOUT_S):
                await self._queue.join()
        except TimeoutError:
            self._metrics.settle_lost.inc(self._unwritten)
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
        }
        if not address.sentinels:
            return redis.Redis(host=address.host, port=address.port, ssl=address.tls, **options)
        self._sentinel = Sentinel(address.sentinels, sentinel_kwargs=options, **options)  # type: ignore[no-untyped-call]
        return cast("redis.Redis", self._sentinel.master_for(address.primary_name, ssl=address.tls))

    async def _write(self) -> None:
        while True:
            record = await self._queue.get()
            while not await self._add(record):  # noqa: ASYNC110 - waits for another process, which sets no event
                await asyncio.sleep(RETRY_PAUSE_S)
            self._unwritten -= 1
            self._queue.task_done()

    async def _add(self, record: SettleRecord) -> bool:
        try:
            await self._client.xadd(
                STREAM, {"record": msgspec.json.encode(record)}, maxlen=MAX_STREAM_RECORDS, approximate=True
            )
        except (RedisError, OSError) as error:
            logger.warning("settle record not written, trying again", extra={"error": type(error).__name__})
            return False
        return True
