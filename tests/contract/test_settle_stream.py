"""Settle records on a real Valkey, and over a failover of its primary."""

import asyncio
from dataclasses import replace
from uuid import uuid4

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from gateway.guard.addresses import address_of
from gateway.metering.settle import Outcome, SettleRecord
from gateway.metering.settle_store import STREAM, SettleStream
from gateway.site.valkey_store import SiteAddress
from gateway.telemetry.metrics import Metrics
from tests.valkey_server import PRIMARY_NAME, SentinelSite, ValkeyServer

RECORD = SettleRecord("", "r", "t", "k", "chat/completions", "m", "d", "s", Outcome.OK, 1, 10, 5, 3, True, 0.1, 0.2)


def records(count: int) -> list[SettleRecord]:
    return [replace(RECORD, settle_id=uuid4().hex) for _ in range(count)]


def kept(server: ValkeyServer) -> list[str]:
    with server.client() as client:
        return [msgspec.json.decode(fields[b"record"])["settle_id"] for _, fields in client.xrange(STREAM)]


async def until_written(stream: SettleStream, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while stream._unwritten:
            await asyncio.sleep(0.02)


async def test_records_are_in_the_stream_when_it_closes(own_valkey: ValkeyServer) -> None:
    wanted = records(20)
    async with SettleStream(SiteAddress(port=own_valkey.port), Metrics(CollectorRegistry())) as stream:
        for record in wanted:
            stream.keep(record)
    assert kept(own_valkey) == [record.settle_id for record in wanted]


@pytest.mark.slow
async def test_after_a_failover_records_go_to_the_new_primary_and_none_that_came_meanwhile_is_lost() -> None:
    site = SentinelSite()
    metrics = Metrics(CollectorRegistry())
    try:
        url = f"redis+sentinel://127.0.0.1:{site.sentinel.port}/{PRIMARY_NAME}"
        before, during, after = records(5), records(5), records(5)
        async with SettleStream(address_of(url), metrics) as stream:
            for record in before:
                stream.keep(record)
            await until_written(stream, 5)
            await asyncio.sleep(0.5)
            site.primary.kill()
            for record in during:
                stream.keep(record)
            await until_written(stream, 30)
            for record in after:
                stream.keep(record)
            await until_written(stream, 5)
        assert set(kept(site.replica)) >= {record.settle_id for record in (*before, *during, *after)}
        assert metrics.settle_lost._value.get() == 0
    finally:
        site.primary.start()
        site.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://x", "begins with"),
        ("redis+sentinel://a:1,b:2", "primary's name"),
        ("redis+sentinel://a/main", "host:port"),
        ("redis+other://a:1/main", "begins with"),
    ],
)
def test_a_wrong_url_is_told(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        address_of(url)


def test_a_url_with_sentinels_names_all_of_them() -> None:
    assert address_of("rediss+sentinel://u:p%40ss@a:1,b.c:26379/main") == SiteAddress(
        sentinels=(("a", 1), ("b.c", 26379)), primary_name="main", username="u", password="p@ss", tls=True
    )
