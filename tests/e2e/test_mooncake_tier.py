"""The whole stack with Mooncake's store (`up --tiers mooncake`): what leaves the engine comes back, and a store that is killed
under it costs a recompute. One stack for this module; the tests build on each other in order."""

import re
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest

from benchmarks.kv_tiers.fidelity import question_of
from tests.conftest import needs_on_ci
from tests.support.stack import Stack, running_stack

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

CHUNK_TOKENS = 256
HEALED_WITHIN_S = 240.0
ANSWERED_WITHIN_S = 60.0
ANSWER_TOKENS = 6


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    needs_on_ci(psutil.virtual_memory().available > 9e9, "memory for a stack with a tier")
    state = tmp_path_factory.mktemp("mooncake") / "state"
    with running_stack(state, "--tiers", "mooncake", within_s=600) as stack:
        yield stack


def ask(stack: Stack, name: str) -> tuple[str, int]:
    answer = stack.chat(question_of(name), timeout_s=ANSWERED_WITHIN_S, max_tokens=ANSWER_TOKENS, temperature=0)
    body = answer.raise_for_status().json()
    return body["choices"][0]["message"]["content"], body["usage"]["prompt_tokens_details"]["cached_tokens"]


def stored_keys(stack: Stack) -> int:
    told = httpx.get(f"{stack.running['mooncake_url']}/metrics/summary", timeout=10).text
    found = re.search(r"Keys: (\d+)", told)
    return int(found[1]) if found else 0


def test_what_is_computed_once_comes_back_to_a_new_engine(tiered: Stack) -> None:
    cold, cached = ask(tiered, "Anna")
    assert cached < CHUNK_TOKENS
    ask(tiered, "Boris")
    tiered.until(lambda: stored_keys(tiered) >= 2 * 4, 30, "stored")
    dead = tiered.kill("prefill-0")
    tiered.until(lambda: tiered.is_back("prefill-0", dead), HEALED_WITHIN_S, "engine back")
    tiered.until(lambda: tiered.answers(30), HEALED_WITHIN_S, "served again")
    text, cached = ask(tiered, "Anna")
    print("cold and from the store:", repr(cold), repr(text), "cached tokens:", cached)
    assert cached >= 4 * CHUNK_TOKENS
    tiered.until(lambda: tiered.metric("prefill-0", "vllm:prime_kv_loads_total", end="loaded") == 1, 15, "counted")


def test_a_store_killed_under_a_living_engine_costs_a_recompute(tiered: Stack) -> None:
    worker = tiered.pid_of("prefill-0")
    dead = tiered.kill("mooncake-store")
    began = time.monotonic()
    _, cached = ask(tiered, "Boris")
    print(f"with the store killed: {time.monotonic() - began:.1f} s, {cached} tokens cached")
    assert cached < CHUNK_TOKENS
    tiered.until(lambda: tiered.is_back("mooncake-store", dead), HEALED_WITHIN_S, "store back")
    ask(tiered, "Clara")
    assert tiered.pid_of("prefill-0") == worker


def test_two_tenants_share_no_prefix(tiered: Stack) -> None:
    def cached(tenant: str) -> int:
        return tiered.cached_for(tenant, question_of("Greta"), ANSWERED_WITHIN_S)

    assert cached("one") < CHUNK_TOKENS
    assert cached("two") < CHUNK_TOKENS
