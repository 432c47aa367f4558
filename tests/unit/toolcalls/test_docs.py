"""The numbers in `docs/toolcalls.md` are those of the newest committed results, and the results keep what the issue asks."""

import re
import statistics
from pathlib import Path

import pytest

from benchmarks.toolcalls.refusals import totals
from benchmarks.toolcalls.tables import FILES, PAGE, newest, p99, written
from prime_inference.toolcalls.suite.generate import EVERY, LEAST_SHARE
from prime_inference.toolcalls.suite.refused import NO_TOOLS, REFUSED

ROOT = Path(__file__).resolve().parents[3]
TEXT = PAGE.read_text()


def test_every_table_is_what_the_newest_results_give() -> None:
    """If not: `python -m benchmarks.toolcalls.tables`."""
    assert written(TEXT) == TEXT


@pytest.mark.parametrize("kind", FILES)
def test_a_result_says_where_it_came_from(kind: str) -> None:
    _, result = newest(kind)
    about = result.get("about", result)
    assert {"command", "commit", "machine", "versions"} <= set(about)
    assert {"sources_sha256", "source_sha256"} & set(about)


@pytest.mark.parametrize("kind", ["scale", "bfcl"])
def test_the_grammar_and_the_judge_keep_their_bounds(kind: str) -> None:
    _, found = newest(kind)
    mine, judged = found["normalised"], found["judged"]
    for side in (found["plain"], mine):
        for column, name in ((1, "right"), (2, "right_rejected"), (3, "wrong"), (4, "wrong_accepted")):
            assert sum(row[column] for row in side["rows"]) == side[name]
        assert len(side["rows"]) == side["tools"] - side["unreported_failures"]
    assert mine["right_rejected"] <= 0.01 * mine["right"]
    assert mine["wrong_accepted"] <= 0.03 * mine["wrong"]
    assert mine["unreported_failures"] == mine["text_differs"] == 0
    assert judged["right_rejected"] == judged["wrong_accepted"] == judged["wrong_after_parsing"] == 0


def test_the_generated_set_is_large_and_holds_every_construct() -> None:
    _, found = newest("scale")
    assert found["plain"]["tools"] == found["normalised"]["tools"] == found["count"] >= 2000
    assert set(found["constructs"]) == set(EVERY)
    assert min(found["constructs"].values()) >= int(LEAST_SHARE * found["count"])
    assert found["refused"] == [], "what must be refused is in a group of its own"
    assert found["normalised"]["wrong_accepted_unreported"] == 0
    assert found["plain"]["unreported_failures"] + found["plain"]["right_rejected"] > 0, "the normaliser would be idle"


def test_every_tool_that_must_be_refused_was_with_its_name_and_the_place() -> None:
    _, found = newest("scale")
    of_each = totals(found["refusals"])
    assert set(of_each) == set(REFUSED)
    for construct, count in of_each.items():
        assert count["tools"] >= found["count"] // 10 // len(REFUSED)
        assert count["refused"] == count["named"] == count["tools"]
        assert count["by_name_only"] == (0 if construct in NO_TOOLS else count["tools"])


def test_tool_calls_cost_what_they_may() -> None:
    samples = newest("cost")[1]["samples"]
    middle = {name: statistics.median(values) for name, values in samples.items()}
    assert middle["request_warm"] <= 2
    assert middle["door_cold_longest_turn"] < middle["door_cold"] / 4
    assert max(p99(samples[name]) for name in ("event", "event_responses", "event_messages")) <= 0.5
    compiled = newest("compile")[1]["samples"]
    assert statistics.median(compiled["recombined"]) < statistics.median(compiled["anew"]) / 2


def test_the_contracts_tests_exist() -> None:
    table = TEXT.partition("## The contract")[2].partition("\n\n")[0]
    rows = [row for row in table.splitlines() if re.match(r"\| I\d+ ", row)]
    assert [row.split()[1] for row in rows] == [f"I{number}" for number in range(1, 11)]
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named
        assert [name for name in named if f"def {name}(" not in sources] == []
