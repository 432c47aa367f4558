"""docs/kv.md quotes what the result files hold."""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
DOC = (ROOT / "docs/kv.md").read_text()


def result(name: str) -> Any:
    return json.loads((ROOT / "benchmarks/results" / name / "result.json").read_text())


def test_every_ratio_against_lmcaches_client_is_the_recorded_one() -> None:
    recorded = set()
    for row in result("2026-11-30-kv-l2-client")["rows"]:
        low, high = row["speed_ratio_95"]
        recorded.add(f"{row['speed_ratio_median']:.2f} [{low:.2f}, {high:.2f}]")
    quoted = re.findall(r"\d\.\d\d \[\d\.\d\d, \d\.\d\d\]", DOC)
    assert set(quoted) == recorded
    assert len(quoted) == 22  # each row of the table once


def test_the_worst_row_of_the_replay_is_the_quoted_one() -> None:
    rows = result("2026-11-30-kv-replay")["rows"]
    worst = max(row["gate_p99_over_no_tier"] for row in rows)
    assert f"The worst of all {len(rows)} rows is {worst:.3f}" in DOC
    assert worst <= 1.05


def test_every_phase_on_real_parts_gave_the_cold_tokens_and_the_quoted_hits() -> None:
    phases = result("2026-11-30-kv-tier-connector")["phases"]
    assert all(phase["tokens"] == phases[0]["tokens"] for phase in phases)
    assert [phase["cached_tokens"] for phase in phases] == [0, 1024, 1024, 1024, 1024, 512, 0, 0]
