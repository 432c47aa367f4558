"""Settle records on a real Valkey: every one, in order, whatever Valkey does meanwhile."""

import asyncio

import msgspec
import pytest
from redis import Redis

from gateway.guard.addresses import address_of
from gateway.metering import settle_store
from gateway.metering.settle import Outcome, SettleRecord
from gateway.metering.settle_store import MAX_RECORDS_A_TRIP, STREAM, SettleStream
from gateway.site.valkey_store import SiteAddress
from gateway.telemetry.metrics import Metrics
from tests.valkey_server import PRIMARY_NAME, SentinelSite, ValkeyServer


def record(number: int) -> SettleRecord:
    return SettleRecord(
        settle_id=str(number), request_id="r", tenant="t", key_name="k", endpoint="chat/completions", model="m",
        deployment="d", session="s", outcome=Outcome.OK, attempts=1, prompt_tokens=7, cached_tokens=3,
        completion_tokens=2, usage_known=True, first_event_seconds=None, duration_seconds=0.5,
    )  # fmt: skip


def written(port: int) -> list[SettleRecord]:
    with Redis(port=port) as client:
        entries = client.xrange(STREAM)
    return [msgspec.json.decode(fields[b"record"], type=SettleRecord) for _, fields in entries]


async def test_more_records_than_a_trip_takes_are_entries_of_their_own_in_order(own_valkey: ValkeyServer) -> None:
    metrics, count = Metrics(), 2 * MAX_RECORDS_A_TRIP + 3
    async with SettleStream(SiteAddress(port=own_valkey.port), metrics) as stream:
        for number in range(count):
            stream.keep(record(number))
    assert written(own_valkey.port) == [record(number) for number in range(count)]
    assert metrics.registry.get_sample_value("prime_gateway_settle_records_lost_total") == 0


async def test_records_that_come_while_a_trip_is_under_way_are_written_too(own_valkey: ValkeyServer) -> None:
    async with SettleStream(SiteAddress(port=own_valkey.port), Metrics()) as stream:
        for number in range(40):
            stream.keep(record(number))
            await asyncio.sleep(0.003)
    assert [each.settle_id for each in written(own_valkey.port)] == [str(number) for number in range(40)]


async def test_a_full_valkey_gets_them_when_it_has_room_again(
    own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle_store, "RETRY_PAUSE_S", 0.05)
    with Redis(port=own_valkey.port) as client:
        client.config_set("maxmemory", "1")
        async with SettleStream(SiteAddress(port=own_valkey.port), Metrics()) as stream:
            for number in range(5):
                stream.keep(record(number))
            await asyncio.sleep(0.2)
            assert written(own_valkey.port) == []
            client.config_set("maxmemory", "0")
    assert [each.settle_id for each in written(own_valkey.port)] == [str(number) for number in range(5)]


async def test_what_a_dead_valkey_did_not_get_is_counted(own_valkey: ValkeyServer) -> None:
    own_valkey.kill()
    metrics = Metrics()
    async with SettleStream(SiteAddress(port=own_valkey.port), metrics) as stream:
        for number in range(settle_store.MAX_QUEUED_RECORDS + 2):
            stream.keep(record(number))
        assert metrics.registry.get_sample_value("prime_gateway_settle_records_lost_total") == 2
    lost = metrics.registry.get_sample_value("prime_gateway_settle_records_lost_total")
    assert lost == settle_store.MAX_QUEUED_RECORDS + 2


@pytest.mark.slow
async def test_after_a_failover_records_go_to_the_new_primary_and_none_that_came_meanwhile_is_lost() -> None:
    site, metrics = SentinelSite(), Metrics()
    try:
        url = f"redis+sentinel://127.0.0.1:{site.sentinel.port}/{PRIMARY_NAME}"
        async with SettleStream(address_of(url), metrics) as stream:
            for first in (0, 5, 10):
                for number in range(first, first + 5):
                    stream.keep(record(number))
                async with asyncio.timeout(30):
                    await stream._empty.wait()
                if first == 0:
                    await asyncio.sleep(0.5)
                    site.primary.kill()
        assert {each.settle_id for each in written(site.replica.port)} == {str(number) for number in range(15)}
        assert metrics.registry.get_sample_value("prime_gateway_settle_records_lost_total") == 0
    finally:
        site.primary.start()
        site.close()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://x", "begins with"),
        ("redis+sentinel://a:1,b:2", "primary's name"),
        ("redis+sentinel://a/main", "host:port"),
        ("redis+sentinel://a:99999/main", "host:port"),
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
