"""The live run's summary follows from its samples."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.toolcalls.live import MAX_TOKENS, verdict
from benchmarks.toolcalls.live import Answer as LiveAnswer
from benchmarks.toolcalls.live_cases import live_cases
from benchmarks.toolcalls.live_summary import summarise

ROOT = Path(__file__).resolve().parents[3]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*-toolcalls-live/live.json"))


def load(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    return result


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_the_summary_and_every_verdict_follow_from_the_raw_samples(path: Path) -> None:
    result = load(path)
    assert result["summary"] == summarise(result["samples"])
    assert {"command", "machine", "versions", "commit", "source_sha256"} <= set(result["about"])
    cases = live_cases(result["settings"]["enforced"], result["settings"]["seed"])
    for sample in (*result["samples"]["enforced"], *result["samples"]["unenforced"]):
        calls = [(name, arguments) for name, arguments in sample["calls"]]
        error = None if sample["finish_reason"] is not None else sample["why"]
        answer = LiveAnswer(calls, sample["finish_reason"], sample["tokens"], error)
        assert verdict(cases[sample["case"]], answer) == (sample["class"], sample["why"])
        assert cases[sample["case"]].family == sample["family"]


def test_the_newest_run_is_of_five_hundred_calls_and_without_an_error() -> None:
    result = load(RESULTS[-1])
    enforced, free = result["summary"]["enforced"], result["summary"]["unenforced"]
    assert result["settings"]["max_tokens"] == MAX_TOKENS
    assert enforced["requests"] >= 500
    assert enforced["errors"] == 0
    assert free["errors"] > 0
