"""Settle records on a real Valkey: every one, in order, whatever Valkey does meanwhile."""

import asyncio

import msgspec
import pytest
from redis import Redis

from gateway.metering import settle_store
from gateway.metering.settle import Outcome, SettleRecord
from gateway.metering.settle_store import MAX_RECORDS_A_TRIP, STREAM, SettleStream
from gateway.telemetry.metrics import Metrics
from tests.valkey_server import ValkeyServer


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
    async with SettleStream(f"redis://127.0.0.1:{own_valkey.port}", metrics) as stream:
        for number in range(count):
            stream.keep(record(number))
    assert written(own_valkey.port) == [record(number) for number in range(count)]
    assert metrics.registry.get_sample_value("prime_gateway_settle_records_lost_total") == 0


async def test_records_that_come_while_a_trip_is_under_way_are_written_too(own_valkey: ValkeyServer) -> None:
    async with SettleStream(f"redis://127.0.0.1:{own_valkey.port}", Metrics()) as stream:
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
        async with SettleStream(f"redis://127.0.0.1:{own_valkey.port}", Metrics()) as stream:
            for number in range(5):
                stream.keep(record(number))
            await asyncio.sleep(0.2)
            assert written(own_valkey.port) == []
            client.config_set("maxmemory", "0")
    assert [each.settle_id for each in written(own_valkey.port)] == [str(number) for number in range(5)]


async def test_what_a_dead_valkey_did_not_get_is_counted(own_valkey: ValkeyServer) -> None:
    own_valkey.kill()
    metrics = Metrics()
    async with SettleStream(f"redis://127.0.0.1:{own_valkey.port}", metrics) as stream:
        for number in range(settle_store.MAX_QUEUED_RECORDS + 2):
            stream.keep(record(number))
        assert metrics.registry.get_sample_value("prime_gateway_settle_records_lost_total") == 2
    lost = metrics.registry.get_sample_value("prime_gateway_settle_records_lost_total")
    assert lost == settle_store.MAX_QUEUED_RECORDS + 2
