"""docs/kv.md quotes what the result files hold."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

from benchmarks.kv_tiers.l2_client import interval

ROOT = Path(__file__).parents[3]
DOC = (ROOT / "docs/kv.md").read_text()


def result(name: str) -> Any:
    return json.loads((ROOT / "benchmarks/results" / name / "result.json").read_text())


def test_every_ratio_against_lmcaches_client_is_the_recorded_one() -> None:
    recorded = set()
    for row in result("2026-11-30-kv-l2-exchange")["rows"]:
        low, high = row["speed_ratio_95"]
        recorded.add(f"{row['speed_ratio_median']:.2f} [{low:.2f}, {high:.2f}]")
    quoted = re.findall(r"\d\.\d\d \[\d\.\d\d, \d\.\d\d\]", DOC)
    assert set(quoted) == recorded
    assert len(quoted) == 22  # each row of the table once


def test_the_ratios_follow_from_the_samples() -> None:
    for row in result("2026-11-30-kv-l2-exchange")["rows"]:
        ours, theirs = row["samples_s"]["ours"], row["samples_s"]["lmcache"]
        ratios = [other / own for own, other in zip(ours, theirs, strict=True)]
        assert row["speed_ratio_median"] == statistics.median(ratios)
        assert tuple(row["speed_ratio_95"]) == interval(ratios)


def test_how_many_are_faster_and_slower_is_told_as_it_is() -> None:
    rows = [row for row in result("2026-11-30-kv-l2-exchange")["rows"] if row["operation"] != "lookup"]
    faster = [row for row in rows if row["speed_ratio_95"][0] > 1]
    slower = [row for row in rows if row["speed_ratio_95"][1] < 1]
    same = len(rows) - len(faster) - len(slower)
    flat = " ".join(DOC.split())
    assert f"Of the {len(rows)} loads and stores {len(faster)} are shown faster" in flat
    assert f"{same} show no difference and {len(slower)} are shown slower" in flat
    least, most = (round(100 * (1 - pick(row["speed_ratio_median"] for row in slower))) for pick in (max, min))
    assert f"by {least} to {most} % at the median" in flat
    python = [row["speed_ratio_median"] for row in result("2026-11-30-kv-l2-client")["rows"] if row["bytes"]]
    assert f"stood at {min(python):.2f} to {max(python):.2f}" in flat


def test_the_worst_row_of_the_replay_is_the_quoted_one() -> None:
    rows = result("2026-11-30-kv-replay")["rows"]
    worst = max(row["gate_p99_over_no_tier"] for row in rows)
    assert f"The worst of all {len(rows)} rows is {worst:.3f}" in DOC
    assert worst <= 1.05


def test_every_phase_on_real_parts_gave_the_cold_tokens_and_the_quoted_hits() -> None:
    phases = result("2026-11-30-kv-tier-connector")["phases"]
    assert all(phase["tokens"] == phases[0]["tokens"] for phase in phases)
    assert [phase["cached_tokens"] for phase in phases] == [0, 1024, 1024, 1024, 1024, 512, 0, 0]
