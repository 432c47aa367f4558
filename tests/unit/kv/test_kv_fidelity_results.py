"""What docs/kv.md says of bytes, tokens and needles is what the recorded runs hold."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kv_tiers.fidelity import CONTEXT_TOKENS, compare
from benchmarks.kv_tiers.witnessed import judge
from prime_inference.kv.capacity import CHUNK_TOKENS

ROOT = Path(__file__).parents[3]
RUNS = sorted(path.parent.name for path in (ROOT / "benchmarks/results").glob("*-kv-fidelity*/result.json"))


def result(name: str) -> Any:
    return json.loads((ROOT / "benchmarks/results" / name / "result.json").read_text())


def test_there_is_a_recorded_run() -> None:
    assert RUNS


@pytest.mark.parametrize("name", RUNS)
def test_the_summary_follows_from_the_samples(name: str) -> None:
    told = result(name)
    assert told["bytes"] == judge(told["witness"])
    assert told["paths"] == compare(told["rows"])


@pytest.mark.parametrize("name", RUNS)
def test_no_byte_came_back_other_than_it_left_and_no_path_lost_a_needle(name: str) -> None:
    told = result(name)
    assert told["bytes"]["load_other"] == told["bytes"]["end_other"] == 0
    assert told["bytes"]["load_same"] == told["bytes"]["end_same"] > 0
    for path in ("L1", "L2"):
        assert told["paths"][path]["as_own_cache_to_the_bit"] == told["paths"][path]["prompts"]
    assert all(row["cold_needles_lost"] == [] for row in told["paths"].values())


@pytest.mark.parametrize("name", RUNS)
def test_the_page_quotes_the_run(name: str) -> None:
    told, page = result(name), " ".join((ROOT / "docs/kv.md").read_text().split())
    assert name in page
    assert f"{told['bytes']['load_same']} of {told['bytes']['load_same']} digests" in page
    for path, row in told["paths"].items():
        quoted = f"| {path} | {row['as_cold']} | {row['as_own_cache_to_the_bit']} | {row['needles']} |"
        assert quoted in page, quoted


@pytest.mark.parametrize("name", RUNS)
def test_cold_repeats_itself_and_another_shape_rounds_otherwise_with_or_without_a_tier(name: str) -> None:
    rows = {(row["path"], row["name"]): row for row in result(name)["rows"]}
    names = [who for path, who in rows if path == "cold"]
    apart = {
        path: max(
            abs(ours - theirs)
            for who in names
            for ours, theirs in zip(rows["cold", who]["logprobs"], rows[path, who]["logprobs"], strict=True)
        )
        for path in ("cold again", "own cache", "L1", "L2")
    }
    assert apart["cold again"] == 0
    assert apart["own cache"] == apart["L1"] == apart["L2"]
    assert f"{apart['L2']:.3f}" in (ROOT / "docs/kv.md").read_text()


def test_where_an_answer_differs_from_cold_the_two_best_tokens_were_tied() -> None:
    leads = [lead for name in RUNS for row in result(name)["paths"].values() for lead in row["leads_where_other"]]
    assert leads
    assert max(leads) == 0.0


def test_at_the_longest_length_where_cold_finds_its_needles_every_path_finds_them() -> None:
    told, page = result("2026-11-30-kv-fidelity-longest"), " ".join((ROOT / "docs/kv.md").read_text().split())
    paths, lengths = told["paths"], [row["prompt_tokens"] for row in told["rows"]]
    assert paths["cold"]["prompts"] == 8
    assert paths["cold"]["needles"] >= 7
    for path in ("L1", "L2"):
        # No prompt that fits the context can have another chunk cached.
        assert paths[path]["cached_tokens"] == [(CONTEXT_TOKENS - 1) // CHUNK_TOKENS * CHUNK_TOKENS]
    assert f"eight prompts of {min(lengths):,} to {max(lengths):,} tokens" in page
    assert f"{told['bytes']['stores_differ']} of {told['bytes']['stored']} chunks were stored again" in page
