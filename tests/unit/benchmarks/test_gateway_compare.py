"""The ratio within pairs, and every kept comparison: its summary follows from its samples."""

import json

from benchmarks.gateway.compare import EVENTS, KINDS, LEAST_UNITS, ratio_of
from benchmarks.gateway.report import RESULTS


def turn(cpu_us: float, units: int = LEAST_UNITS) -> dict[str, float]:
    return {"units": units, "cpu_us": cpu_us}


def test_the_ratio_is_taken_within_pairs() -> None:
    # The machine was four times slower for the second half of them.
    pairs = [(turn(100), turn(80))] * 3 + [(turn(400), turn(320))] * 3
    assert ratio_of(pairs) == {"pairs": 6, "ratio": 0.8, "lower": 0.8, "upper": 0.8}


def test_a_turn_without_work_counts_for_nothing() -> None:
    pairs = [(turn(100), turn(90)), (turn(100), turn(90)), (turn(100, 2), turn(5000))]
    assert ratio_of(pairs)["pairs"] == 2
    assert ratio_of(pairs[:1])["ratio"] is None


def test_kept_comparisons_follow_from_their_samples() -> None:
    for path in RESULTS.glob("*-gateway-compare/result.json"):
        result = json.loads(path.read_text())
        assert set(KINDS) <= set(result["samples"]) <= {*KINDS, EVENTS}
        assert result["summary"] == {kind: ratio_of(pairs) for kind, pairs in result["samples"].items()}
