"""docs/kv.md quotes what the result files hold."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kv_tiers.l2_client import interval
from benchmarks.kv_tiers.report import l2_verdict, newest, rendered

ROOT = Path(__file__).parents[3]
DOC = (ROOT / "docs/kv.md").read_text()


def result(name: str) -> Any:
    return json.loads((ROOT / "benchmarks/results" / name / "result.json").read_text())


def test_the_pages_tables_are_what_the_report_tool_writes_from_the_newest_results() -> None:
    assert rendered(DOC) == DOC


def test_the_ratios_follow_from_the_samples() -> None:
    path = newest("kv-l2-exchange")
    assert path is not None
    for row in json.loads(path.read_text())["rows"]:
        ours, theirs = row["samples_s"]["ours"], row["samples_s"]["lmcache"]
        ratios = [other / own for own, other in zip(ours, theirs, strict=True)]
        assert row["speed_ratio_median"] == statistics.median(ratios)
        assert tuple(row["speed_ratio_95"]) == interval(ratios)


def test_a_load_is_called_slower_or_faster_only_with_its_whole_interval() -> None:
    def row(low: float, median: float, high: float, operation: str = "load") -> dict[str, Any]:
        return {"operation": operation, "speed_ratio_95": [low, high], "speed_ratio_median": median}

    rows = [
        row(0.8, 0.9, 0.99),
        row(0.9, 0.95, 1.01),
        row(1.01, 1.2, 1.3),
        row(0.5, 0.6, 0.7),
        row(0.1, 0.2, 0.3, "lookup"),
    ]
    told = l2_verdict(rows)
    assert "Of the 4 loads and stores 1 are shown faster" in told
    assert "1 show no difference and 2 are shown slower, by 10 to 40 % at the median" in told
    assert l2_verdict(rows[1:3]).endswith("and 0 are shown slower.")


def test_the_fallbacks_ratios_are_the_recorded_ones() -> None:
    python = [row["speed_ratio_median"] for row in result("2026-11-30-kv-l2-client")["rows"] if row["bytes"]]
    assert f"stood at {min(python):.2f} to {max(python):.2f}" in " ".join(DOC.split())


def test_the_worst_row_of_the_replay_is_the_quoted_one() -> None:
    rows = result("2026-11-30b-kv-replay")["rows"]
    worst = max(row["gate_p99_over_no_tier"] for row in rows)
    before = max(row["gate_p99_over_no_tier"] for row in result("2026-11-30-kv-replay")["rows"])
    assert f"The worst of all {len(rows)} rows is {worst:.3f}" in DOC
    assert f"it was {before:.3f}" in DOC
    assert worst <= before <= 1.05


@pytest.mark.parametrize("case", ["0.1 x B*", "0.35 x B*", "1 x B*", "4.2 x B*", "10 x B*", "10 and 0.1, every 5 s"])
def test_the_replays_table_has_the_gates_range_over_seeds_and_rates(case: str) -> None:
    ratios = [row["gate_p99_over_no_tier"] for row in result("2026-11-30b-kv-replay")["rows"] if row["case"] == case]
    named = case.replace("0.1,", "0.1 x B*,")
    (line,) = [each for each in DOC.splitlines() if each.startswith((f"| {named} |", f"| {named} ("))]
    low, _, high = line.split(" | ")[1].partition(" to ")
    assert [float(low), float(high)] == pytest.approx([min(ratios), max(ratios)], abs=0.0051)


def test_every_phase_on_real_parts_gave_the_cold_tokens_and_the_quoted_hits() -> None:
    runs = {"2026-11-30-kv-tier-connector": [512, 0], "2026-11-30b-kv-tier-connector": [0, 1024]}
    for name, with_shards_dead in runs.items():
        phases = result(name)["phases"]
        assert all(phase["tokens"] == phases[0]["tokens"] for phase in phases)
        assert [phase["cached_tokens"] for phase in phases] == [0, 1024, 1024, 1024, 1024, *with_shards_dead, 0]
        assert name in DOC
