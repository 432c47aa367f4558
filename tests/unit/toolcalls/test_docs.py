"""The numbers in `docs/toolcalls.md` are those of the committed results."""

import json
import re
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


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def test_the_cost_numbers_have_their_source() -> None:
    samples = result("2026-11-30c-toolcalls-cost")["samples"]
    middle = {name: statistics.median(values) for name, values in samples.items()}
    for said in (
        f'("compile cached") | {middle["request_warm"]:.2f} ms |',
        f"names or descriptions | {middle['door_redescribed']:.1f} ms |",
        f"schemas never seen, once | {middle['door_cold']:.1f} ms |",
        f"and judge: {p99(samples['event']):.3f} ms at p99 ({middle['event']:.3f} at p50)",
        f"in Responses {p99(samples['event_responses']):.3f} ({middle['event_responses']:.3f})",
        f"in Messages {p99(samples['event_messages']):.3f} ({middle['event_messages']:.3f})",
        f"without tools {p99(samples['event_bare']):.3f} ({middle['event_bare']:.3f})",
    ):
        assert said in PAGE, said
    assert middle["request_warm"] <= 2
    assert max(p99(samples[name]) for name in ("event", "event_responses", "event_messages")) <= 0.5


def test_the_longest_turn_at_the_door_has_its_source() -> None:
    samples = result("2026-11-30d-toolcalls-cost")["samples"]
    middle = {name: statistics.median(values) for name, values in samples.items()}
    for said in (
        f"never seen took {middle['door_cold']:.1f} ms",
        f"for {middle['door_cold_longest_turn']:.1f} ms at a stretch (p50)",
        f"and one verdict {middle['request_warm']:.2f} ms; an event at p99 {p99(samples['event']):.2f} ms",
        f"Responses {p99(samples['event_responses']):.2f}, in Messages {p99(samples['event_messages']):.2f}.",
    ):
        assert said in PAGE, said
    assert middle["door_cold_longest_turn"] < middle["door_cold"] / 4
    assert middle["request_warm"] <= 2
    assert max(p99(samples[name]) for name in ("event", "event_responses", "event_messages")) <= 0.5


def test_the_compile_processs_numbers_have_their_source() -> None:
    samples = result("2026-11-30c-toolcalls-cost", "compile.json")["samples"]
    middle = {name: statistics.median(values) for name, values in samples.items()}
    assert (
        f"beside the event loop: {middle['new']:.0f} ms for 20 new tools; {middle['recombined']:.0f} ms for a new"
        in PAGE
    )
    assert f"({middle['anew']:.0f} ms if it were compiled again)" in PAGE
    assert middle["recombined"] < middle["anew"] / 2


def test_the_earlier_cost_numbers_have_their_source() -> None:
    samples = result("2026-11-30-toolcalls-cost")["samples"]
    warm, cold = (statistics.median(samples[name]) for name in ("request_warm", "door_cold"))
    assert f"(warm {warm:.2f} ms, never seen {cold:.1f} ms)" in PAGE
    result("2026-11-30b-toolcalls-cost")


def test_the_contracts_tests_exist() -> None:
    table = PAGE.partition("## The contract")[2].partition("\n\n")[0]
    rows = [row for row in table.splitlines() if re.match(r"\| I\d+ ", row)]
    assert [row.split()[1] for row in rows] == [f"I{number}" for number in range(1, 11)]
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named
        assert [name for name in named if f"def {name}(" not in sources] == []


def test_the_wire_numbers_have_their_source() -> None:
    rows = result("2026-11-30-toolcalls-wire", "dynamo-own-parsers.json")["rows"]
    assert f"{len({row[0] for row in rows})} wire cases" in PAGE
    assert f"{len({row[0] for row in rows if row[3]})} cases are wrong" in PAGE
