"""The whole stack with the KV tier (`up --tiers lmcache`): what leaves the engine comes back, and nothing hangs when the
tier's processes are killed under it. One stack, started for this module; the tests build on each other in order."""

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import needs_on_ci
from tests.support.stack import Stack, running_stack

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

SHARDS = 4
CHUNK_TOKENS = 256
HEALED_WITHIN_S = 240.0
ANSWERED_WITHIN_S = 60.0
"""An answer beside a killed process; computing such a prompt takes 2 to 10 s here."""

ANSWER_TOKENS = 6
"""Further on the digits are near ties, which another shape of the same computation decides otherwise (docs/kv.md)."""

SENTENCES = (
    "The night watch counted {0} ships and {1} lamps before the bells of the old harbour rang.",
    "In the ledger of house {0} the clerk wrote {1} barrels of salt, and nobody asked him why.",
    "Road {0} runs past {1} mills to the river, where the ferry waits for the last cart.",
)


@dataclass
class Asked:
    """What each prompt was answered the first time."""

    cold: dict[str, str] = field(default_factory=dict)


def prompt(name: str) -> str:
    """About 1,300 tokens, different from the first ones on. At this length the model finds the secret number in none of three
    prompts, cold or not, so answers are compared as text."""
    seed = sum(name.encode()) * 7919
    lines = [SENTENCES[n % 3].format(seed % (97 + n), (seed + 31 * n) % 89) for n in range(48)]
    lines.insert(24, f"Remember this: the secret number of {name} is {seed % 9000 + 1000}.")
    return f"Notes of {name}. {' '.join(lines)} What is the secret number of {name}? Answer with the number."


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    needs_on_ci(psutil.virtual_memory().available > 9.5e9, "memory for a stack with a tier")
    state = tmp_path_factory.mktemp("tiers") / "state"
    with running_stack(state, "--tiers", "lmcache", "--shards", str(SHARDS), within_s=600) as stack:
        yield stack


@pytest.fixture(scope="module")
def asked() -> Asked:
    return Asked()


def ask(stack: Stack, name: str, timeout_s: float = ANSWERED_WITHIN_S) -> tuple[str, int]:
    answer = stack.chat(prompt(name), timeout_s=timeout_s, max_tokens=ANSWER_TOKENS, temperature=0)
    body = answer.raise_for_status().json()
    return body["choices"][0]["message"]["content"], body["usage"]["prompt_tokens_details"]["cached_tokens"]


def keys(stack: Stack, operation: str, outcome: str = "ok") -> float:
    """Keys that the L2 client moved, from the server's own page; 0 while the server is away."""
    try:
        text = httpx.get(f"{stack.running['lmcache_urls'][0]}/metrics", timeout=10).text
    except httpx.TransportError:
        return 0.0
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "prime_kv_l2_keys_total"
        and sample.labels["operation"] == operation
        and sample.labels["outcome"] == outcome
    )


def loads(stack: Stack, end: str) -> float:
    return stack.metric("prefill-0", "vllm:prime_kv_loads_total", end=end)


def test_long_prompts_are_computed_once_and_their_chunks_go_to_every_shard(tiered: Stack, asked: Asked) -> None:
    for name in ("Anna", "Boris", "Clara"):
        asked.cold[name], cached = ask(tiered, name)
        assert cached < CHUNK_TOKENS
    # The engine's own cache too computes the end of a prompt in another shape: what it makes of the same prompts.
    print("cold:", asked.cold, "own cache:", {name: ask(tiered, name) for name in asked.cold})
    tiered.until(lambda: keys(tiered, "store") >= 3 * 4, 30, "stored in L2")
    assert loads(tiered, "loaded") == 0
    counted = [line for line in tiered.text().splitlines() if line.startswith("l2-")]
    assert len({line.split(":")[0] for line in counted}) == SHARDS


def test_a_prompt_comes_back_from_l2_when_engine_and_server_are_new(tiered: Stack, asked: Asked) -> None:
    dead = {name: tiered.kill(name) for name in ("prefill-0", "lmcache")}
    tiered.until(lambda: all(tiered.is_back(name, pid) for name, pid in dead.items()), HEALED_WITHIN_S, "started again")
    tiered.until(lambda: tiered.answers(30), HEALED_WITHIN_S, "served again")
    text, cached = ask(tiered, "Anna")
    print("cold and from L2:", repr(asked.cold["Anna"]), repr(text), "cached tokens:", cached)
    assert cached >= 4 * CHUNK_TOKENS
    assert text == asked.cold["Anna"]
    tiered.until(lambda: loads(tiered, "loaded") == 1, 15, "the load is counted")
    assert keys(tiered, "load") >= 4
    assert tiered.metric("prefill-0", "vllm:prime_kv_loaded_tokens_total") >= 4 * CHUNK_TOKENS


def test_shards_stopped_and_killed_under_a_lookup_cost_a_recompute_and_no_answer(tiered: Stack, asked: Asked) -> None:
    """All of them, so that the prompt has keys there; a single one in mid-load is tests/chaos/kv/test_l2_client_faults.py."""
    names = [f"l2-{number}" for number in range(SHARDS)]
    dead = {name: tiered.kill(name, signal.SIGSTOP) for name in names}
    for name in names:
        threading.Timer(0.3, tiered.kill, [name]).start()
    began = time.monotonic()
    text, cached = ask(tiered, "Boris")
    print(f"with the shards killed: {time.monotonic() - began:.1f} s, {cached} tokens cached")
    assert cached < CHUNK_TOKENS
    assert text == asked.cold["Boris"]
    tiered.until(lambda: all(tiered.is_back(name, pid) for name, pid in dead.items()), 30, "shards back")


def test_the_server_killed_under_a_living_engine_hangs_nothing_and_is_used_again(tiered: Stack, asked: Asked) -> None:
    worker = tiered.pid_of("prefill-0")
    with ThreadPoolExecutor(3) as pool:
        caught = [pool.submit(ask, tiered, name) for name in ("Clara", "David")]
        time.sleep(0.2)
        dead = tiered.kill("lmcache")
        answers: list[Any] = [each.result(ANSWERED_WITHIN_S) for each in caught]
    assert answers[0][0] == asked.cold["Clara"]
    began = time.monotonic()
    ask(tiered, "Emma")
    print(f"while the server is away: {time.monotonic() - began:.1f} s")
    tiered.until(lambda: tiered.is_back("lmcache", dead), HEALED_WITHIN_S, "server back")

    def stored_again() -> bool:
        """The engine is registered with the new server when a new prompt's chunks reach L2."""
        ask(tiered, f"Frida {time.monotonic()}")
        time.sleep(1)
        return keys(tiered, "store") > 0

    tiered.until(stored_again, 60, "stored through the new server")
    assert tiered.metric("prefill-0", "vllm:prime_kv_server_losses_total") >= 1
    assert tiered.pid_of("prefill-0") == worker


def test_two_tenants_share_no_prefix_in_the_engine_or_the_tier(tiered: Stack) -> None:
    def cached(tenant: str) -> int:
        return tiered.cached_for(tenant, prompt("Greta"), ANSWERED_WITHIN_S)

    assert cached("one") < CHUNK_TOKENS
    assert cached("one") >= 4 * CHUNK_TOKENS
    assert cached("two") < CHUNK_TOKENS
