import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.provenance import ROOT
from tests.soak.judge import MOST_GROWTH_MIB, judge

RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*-soak/soak.json"))


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
