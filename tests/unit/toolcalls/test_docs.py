"""The numbers in `docs/toolcalls.md` are those of the committed results."""

import json
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "toolcalls.md").read_text()


def result(name: str, file: str = "result.json") -> dict[str, Any]:
    assert f"`{name}`" in PAGE
    read: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / name / file).read_text())
    assert {"command", "commit", "machine", "versions", "sources_sha256"} <= set(read)
    return read


def test_the_scale_numbers_have_their_source() -> None:
    found = result("2026-11-30-toolcalls-scale")
    plain, mine, judged = found["plain"], found["normalised"], found["judged"]
    for said in (
        f"| {plain['compile_failures']} of {plain['tools']:,} | {mine['unreported_failures']} |",
        f"| {plain['right_rejected']} of {plain['right']:,} (22.5 %) | {mine['right_rejected']} of {mine['right']:,} |",
        f"| {plain['wrong_accepted']:,} of {plain['wrong']:,} (7.7 %) |",
        f"| {mine['wrong_accepted']} of {mine['wrong']:,} (2.5 %) |",
        f"| {judged['right_rejected']} of {judged['right']:,} / {judged['wrong_accepted']} of {judged['wrong']:,} |",
        f"| {judged['wrong_after_parsing']} of {judged['right'] + judged['wrong']:,} |",
        f"in at least {min(found['constructs'].values())} of them",
    ):
        assert said in PAGE
    assert sum(row[2] for row in mine["rows"]) == mine["right_rejected"]
    assert sum(row[4] for row in mine["rows"]) == mine["wrong_accepted"]


def test_the_numbers_of_the_tightened_text_have_their_source() -> None:
    found = result("2026-11-30b-toolcalls-scale")
    mine, judged = found["normalised"], found["judged"]
    for said in (
        f"right rejected {mine['right_rejected']} of {mine['right']:,}",
        f"wrong accepted {mine['wrong_accepted']} of {mine['wrong']:,} (2.5 %)",
        f"treated otherwise as text {mine['text_differs']}",
        f"wrong after parsing {judged['wrong_after_parsing']} of\n{judged['right'] + judged['wrong']:,}",
    ):
        assert said in PAGE


def test_the_cost_numbers_have_their_source() -> None:
    samples = result("2026-11-30-toolcalls-cost")["samples"]
    assert f"an earlier turn {statistics.median(samples['request_warm']):.2f} ms at p50" in PAGE
    assert f"never seen {statistics.median(samples['door_cold']):.1f} ms at p50" in PAGE
    chunk = sorted(samples["chunk"])
    assert f"{chunk[int(len(chunk) * 0.99)]:.3f} ms at p99" in PAGE
    assert statistics.median(samples["request_warm"]) <= 2


def test_what_an_event_costs_in_the_gateway_has_its_source() -> None:
    samples = result("2026-11-30b-toolcalls-cost")["samples"]
    with_tools, bare = (sorted(samples[name]) for name in ("event", "event_bare"))
    p99 = [values[int(len(values) * 0.99)] for values in (with_tools, bare)]
    assert f"{p99[0]:.3f} ms at p99 ({statistics.median(with_tools):.3f} at p50)" in PAGE
    assert f"without tools {p99[1]:.3f} ({statistics.median(bare):.3f})" in PAGE
    assert p99[0] <= 0.5


def test_the_wire_numbers_have_their_source() -> None:
    rows = result("2026-11-30-toolcalls-wire", "dynamo-own-parsers.json")["rows"]
    assert f"{len({row[0] for row in rows})} wire cases" in PAGE
    assert f"{len({row[0] for row in rows if row[3]})} cases are wrong" in PAGE
