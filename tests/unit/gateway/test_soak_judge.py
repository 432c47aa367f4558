import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.provenance import ROOT
from tests.soak.judge import MOST_GROWTH_MIB, judge

RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*-soak*/soak.json"))


def result(rss: list[float], **last: float) -> dict[str, Any]:
    samples = [{"replica": 0, "rss_mib": each} for each in rss]
    return {"samples": samples, "ended": {}, "last": [{"admitted": 0, "in_flight": 0, "files": 9, "tasks": 9, **last}]}


def test_flat_memory_with_nothing_left_passes_whatever_the_first_quarter_did() -> None:
    assert judge(result([10, 40, 90, 91, 90, 91, 90, 92]))["passed"]


@pytest.mark.parametrize("last", [{"admitted": 1}, {"in_flight": 1}, {"files": 500}, {"tasks": 500}])
def test_whatever_is_left_over_fails(last: dict[str, float]) -> None:
    assert not judge(result([90.0] * 8, **last))["passed"]


def test_growing_memory_fails() -> None:
    assert not judge(result([90 + n * MOST_GROWTH_MIB / 4 for n in range(16)]))["passed"]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_a_committed_soak_is_judged_the_same_again(path: Path) -> None:
    kept = json.loads(path.read_text())
    assert judge(kept) == kept["judged"]
    assert kept["judged"]["passed"]


def test_what_the_docs_say_of_the_soak_is_in_its_result() -> None:
    kept = json.loads((ROOT / "benchmarks" / "results" / "2026-11-30-soak-1h" / "soak.json").read_text())
    ended = kept["ended"]
    text = (ROOT / "docs" / "gateway.md").read_text()
    for words in (
        f"run of {kept['seconds']:.0f} s",
        f"{ended['complete']} requests answered whole",
        f"{kept['left']} left by their clients",
        f"{ended['error_event']} ended with an error event",
        f"{ended['status 504']} with a 504",
        f"at most {max(kept['judged']['rss_growth_mib'].values())} MiB",
    ):
        assert words in text, words
    assert set(ended) == {"complete", "error_event", "status 504"}
