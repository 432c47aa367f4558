"""The recorded measurement: its summary follows from its samples, and the docs quote it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.health.link_down import OUT_WITHIN_S, ROOT
from tests.health.record_link_down import summarise

RESULTS = sorted((ROOT / "benchmarks/results").glob("*-health-link-down/link_down.json"))


def read(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_the_summary_follows_from_the_samples_and_the_aim_is_met(path: Path) -> None:
    result = read(path)
    assert result["summary"] == summarise(result["samples"])
    assert result["summary"]["most_s"] < OUT_WITHIN_S
    assert {"command", "machine", "versions", "commit", "source_sha256"} <= set(result["about"])


def test_the_docs_quote_the_newest_and_name_the_others_numbers() -> None:
    assert len(RESULTS) > 1
    page = (ROOT / "docs/operations.md").read_text()
    for path in RESULTS:
        summary = read(path)["summary"]
        assert f"{summary['least_s']} to {summary['most_s']} s" in page
        assert path.parent.name in page
    words = f"{summary['least_s']} to {summary['most_s']} s in {summary['runs']} runs"
    for text in (page, (ROOT / "docs/adr/0701-drain-through-the-fleet-file.md").read_text()):
        assert words in text
        assert path.parent.name in text
