"""The tier connector over Mooncake's store: vLLM's real classes, and a real master and store over TCP."""

import inspect
import socket
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import httpx
import pytest

pytestmark = pytest.mark.slow

EXTRA = {"prime.gate.bytes_per_s": 10e9, "prime.gate.prefill_tokens_per_s": 53_000, "prime.salt": "required"}
PROMPT = 4_097


@pytest.fixture(scope="module")
def module() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch and vLLM warn of their own parts at import
        from prime_inference.kv import mooncake_connector
    return mooncake_connector


def scheduler_side(module: Any, hit: int | None, **extra: object) -> Any:
    """vLLM's scheduler class with its own lookup; only the client that asks the worker's process is a stand-in."""
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
    from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store import scheduler

    side = module.MooncakeTierConnector.__new__(module.MooncakeTierConnector)
    side._begin_gate({**EXTRA, **extra}, bytes_per_token=48_408)
    side._begin()
    side._role = KVConnectorRole.SCHEDULER
    side.connector_worker = None
    theirs = side.connector_scheduler = scheduler.MooncakeStoreScheduler.__new__(scheduler.MooncakeStoreScheduler)
    theirs.enable_lookup = theirs.load_async = True
    theirs.lookup_async = theirs.enable_partial_hash_hits = False
    theirs._block_size = theirs._hash_block_size = 16
    theirs._store_group_ids = (0,)
    theirs.load_specs, theirs._unfinished_requests, theirs._unfinished_request_ids = {}, {}, set()
    theirs.client = create_autospec(scheduler.LookupKeyClient, instance=True)
    found = None if hit is None else SimpleNamespace(hit_length=hit, tail_key_boundaries=())
    theirs.client.lookup.return_value = found
    return side


def request_of(name: str = "r", salt: str | None = "tenant") -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    return Request(name, list(range(PROMPT)), SamplingParams(max_tokens=1), None, cache_salt=salt)


def blocks() -> Any:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks

    each = create_autospec(KVCacheBlocks, instance=True)
    each.get_block_ids.return_value = (list(range(256)),)
    return each


def test_a_hit_that_pays_is_loaded_and_counted(module: Any) -> None:
    from vllm.v1.outputs import KVConnectorOutput

    side = scheduler_side(module, hit=4_096)
    request = request_of()
    assert side.get_num_new_matched_tokens(request, 0) == (4_096, True)
    side.update_state_after_alloc(request, blocks(), 4_096)
    side.connector_scheduler.update_connector_output = lambda _: None
    side.update_connector_output(KVConnectorOutput(finished_recving={"r"}))
    assert side.get_kv_connector_stats().data["ends"] == {"loaded": 1}


def test_a_tier_that_does_not_pay_is_not_asked_so_nothing_of_it_is_leased(module: Any) -> None:
    side = scheduler_side(module, hit=4_096, **{"prime.gate.bytes_per_s": 0.5e9})
    assert side.get_num_new_matched_tokens(request_of(), 0) == (0, False)
    side.connector_scheduler.client.lookup.assert_not_called()


def test_a_load_that_failed_is_computed_and_not_looked_up_for_ever(module: Any) -> None:
    """-704, gone between lookup and load. vLLM 0.31's own connector finds and loads it again (vllm 55297)."""
    side = scheduler_side(module, hit=4_096)
    request = request_of()
    side.get_num_new_matched_tokens(request, 0)
    side.update_state_after_alloc(request, blocks(), 4_096)
    assert side.get_num_new_matched_tokens(request, 0) == (0, False)
    assert side.connector_scheduler.client.lookup.call_count == 1


def test_a_request_without_a_salt_neither_loads_nor_stores(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.connector import MooncakeStoreConnector
    from vllm.v1.core.sched.output import SchedulerOutput

    side = scheduler_side(module, hit=4_096)
    assert side.get_num_new_matched_tokens(request_of("bare", salt=None), 0) == (0, False)
    moved = [SimpleNamespace(req_id=name, block_hashes=[b"h"]) for name in ("bare", "salted")]
    monkeypatch.setattr(MooncakeStoreConnector, "build_connector_meta", lambda *_: SimpleNamespace(requests=moved))
    metadata = side.build_connector_meta(SchedulerOutput.make_empty())
    assert [each.block_hashes for each in metadata.requests] == [[], [b"h"]]
    shared = scheduler_side(module, hit=4_096, **{"prime.salt": "shared"})
    assert shared.get_num_new_matched_tokens(request_of(salt=None), 0) == (4_096, True)


def test_what_is_overridden_still_has_the_shape_that_vllm_calls(module: Any) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.connector import MooncakeStoreConnector

    for name, value in vars(module.MooncakeTierConnector).items():
        if inspect.isfunction(value) and name[0] != "_":
            theirs = inspect.signature(getattr(MooncakeStoreConnector, name)).parameters
            assert list(inspect.signature(value).parameters) == list(theirs), name


@pytest.mark.parametrize(
    ("extra", "words"),
    [({"prime.server.answer_within_s": 1}, "unknown key"), ({"load_async": False}, "load_async must be true")],
)
def test_a_setting_that_cannot_work_stops_the_start(module: Any, extra: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        module.refuse_unknown({**EXTRA, **extra})


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def store(module: Any) -> Iterator[Any]:
    """A client of a real master and a real store of 16 MiB, as `up` starts them."""
    from mooncake.store import MooncakeDistributedStore

    programs = Path(sys.executable).parent
    rpc, http = free_port(), free_port()
    master = subprocess.Popen(
        [
            str(programs / "mooncake_master"),
            "--rpc_address=127.0.0.1",
            f"--rpc_port={rpc}",
            f"--metrics_port={http}",
            "--default_kv_lease_ttl=30000",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{http}/health", timeout=1).raise_for_status()
                break
            except httpx.HTTPError:
                assert time.monotonic() < deadline
                time.sleep(0.2)
        inner = MooncakeDistributedStore()
        assert inner.setup("127.0.0.1", "P2PHANDSHAKE", 16 * 2**20, 16 * 2**20, "tcp", "", f"127.0.0.1:{rpc}") == 0
        yield module.CountedStore(inner)
        inner.close()
    finally:
        master.kill()
        master.wait()


def test_a_missing_object_a_leased_one_and_a_full_store_answer_as_the_connector_expects(store: Any) -> None:
    """-704, -706 and -200 from the real store; what a transfer is refused for is counted."""
    import ctypes

    size = 2**20
    buffer = ctypes.create_string_buffer(b"x" * size, size)
    address = ctypes.addressof(buffer)
    store.register_buffer(address, size)
    assert list(store.batch_get_into_multi_buffers(["never"], [[address]], [[size]])) == [-704]
    assert store.refused == Counter({"get/-704": 1})
    stored = []
    for number in range(40):  # 40 MiB into 16, and each that is there is leased by the question whether it is
        (answer,) = store.batch_put_from_multi_buffers([f"k{number}"], [[address]], [[size]])
        if answer < 0:
            assert answer == -200
            break
        assert store.is_exist(f"k{number}") == 1
        stored.append(number)
    assert 4 < len(stored) < 17
    assert store.refused["put/-200"] == 1
    assert store.remove("k0") == -706
    assert list(store.batch_get_into_multi_buffers(["k0"], [[address]], [[size]])) == [size]
