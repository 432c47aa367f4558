"""A model of latent attention at two tensor-parallel ranks behind `up --tiers lmcache`: each rank keeps its own chunks, and
what is killed under a load hangs nothing. One stack for this module; the tests build on each other in order.

The model is random (tests/support/tiny_mla.py), so its text means nothing: that the bytes that come back are the bytes that
were stored is tests/e2e/test_kv_bytes.py.
"""

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from prime_inference.local.model import find_model
from prime_inference.local.options import DEFAULT_MODEL
from tests.conftest import needs_on_ci
from tests.support.stack import Stack, running_stack
from tests.support.tiny_mla import make_tiny_mla

pytestmark = [pytest.mark.e2e, pytest.mark.faults, pytest.mark.live]

RANKS = 2
CHUNK_TOKENS = 256
HEALED_WITHIN_S = 240.0
ANSWERED_WITHIN_S = 90.0


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    needs_on_ci(psutil.virtual_memory().available > 12e9, "memory for a stack of three engine processes and a tier")
    folder = tmp_path_factory.mktemp("sharded")
    model = make_tiny_mla(folder / "tiny-mla", find_model(DEFAULT_MODEL, print).path)
    arguments = ("--model", str(model), "--prefill-ranks", str(RANKS), "--tiers", "lmcache", "--shards", str(RANKS))
    with running_stack(folder / "state", *arguments, within_s=600) as stack:
        yield stack


def prompt(name: str) -> str:
    """About 1,500 tokens: five whole chunks, of which rank 0 owns three."""
    seed = sum(name.encode()) * 7919
    return f"Notes of {name}. " + " ".join(f"Lamp {n} burns for {(seed + 31 * n) % 89} hours." for n in range(115))


def ask(stack: Stack, name: str) -> int:
    """The answer is how many tokens were not computed."""
    answer = stack.chat(prompt(name), timeout_s=ANSWERED_WITHIN_S, max_tokens=2, temperature=0)
    return int(answer.raise_for_status().json()["usage"]["prompt_tokens_details"]["cached_tokens"])


def moved(stack: Stack, operation: str) -> list[float]:
    """Chunks by rank, from the prefill worker's own page."""
    return [
        stack.metric("prefill-0", "vllm:prime_kv_rank_chunks_total", rank=str(rank), operation=operation)
        for rank in range(RANKS)
    ]


def keys(stack: Stack, operation: str) -> list[float]:
    """Keys that each rank's server moved to or from its own Valkey, from the servers' pages."""
    pages = [httpx.get(f"{url}/metrics", timeout=10).text for url in stack.running["lmcache_urls"]]
    return [
        sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == "prime_kv_l2_keys_total"
            and sample.labels["operation"] == operation
            and sample.labels["outcome"] == "ok"
        )
        for page in pages
    ]


def test_each_rank_stores_its_own_chunks_once(sharded: Stack) -> None:
    for name in ("Anna", "Boris"):
        assert ask(sharded, name) < CHUNK_TOKENS
    sharded.until(lambda: sum(keys(sharded, "store")) >= 10, 60, "stored in L2")
    sharded.until(lambda: sum(moved(sharded, "stored")) >= 10, 15, "stores are counted")
    assert moved(sharded, "stored") == keys(sharded, "store") == [6, 4]


def test_each_rank_loads_its_own_chunks_and_receives_the_others(sharded: Stack) -> None:
    dead = {name: sharded.kill(name) for name in ("prefill-0", "lmcache-0", "lmcache-1")}
    sharded.until(lambda: all(sharded.is_back(name, pid) for name, pid in dead.items()), HEALED_WITHIN_S, "back")
    sharded.until(lambda: sharded.answers(30), HEALED_WITHIN_S, "served again")
    assert ask(sharded, "Anna") == 5 * CHUNK_TOKENS
    sharded.until(lambda: sum(moved(sharded, "loaded")) >= 5, 15, "loads are counted")
    assert moved(sharded, "loaded") == keys(sharded, "load") == [3, 2]
    assert moved(sharded, "received") == [2, 3]


def test_a_shard_killed_under_a_load_costs_a_recompute_and_no_answer(sharded: Stack) -> None:
    dead = sharded.kill("l2-1", signal.SIGSTOP)
    threading.Timer(0.3, sharded.kill, ["l2-1"]).start()
    began = time.monotonic()
    cached = ask(sharded, "Boris")
    print(f"with rank 1's shard killed: {time.monotonic() - began:.1f} s, {cached} tokens cached")
    assert cached <= CHUNK_TOKENS  # rank 0's first chunk is a prefix; the second is rank 1's
    sharded.until(lambda: sharded.is_back("l2-1", dead), 30, "shard back")


def test_a_ranks_server_killed_under_loads_hangs_nothing_and_is_used_again(sharded: Stack) -> None:
    worker = sharded.pid_of("prefill-0")
    with ThreadPoolExecutor(3) as pool:
        caught = [pool.submit(ask, sharded, name) for name in ("Clara", "Anna", "David")]
        time.sleep(0.2)
        dead = sharded.kill("lmcache-1")
        for each in caught:
            each.result(ANSWERED_WITHIN_S)
    ask(sharded, "Emma")
    sharded.until(lambda: sharded.is_back("lmcache-1", dead), HEALED_WITHIN_S, "server back")

    def stored_again() -> bool:
        ask(sharded, f"Frida {time.monotonic()}")
        time.sleep(1)
        return keys(sharded, "store")[1] > 0

    sharded.until(stored_again, 60, "stored through the new server")
    assert sharded.pid_of("prefill-0") == worker
