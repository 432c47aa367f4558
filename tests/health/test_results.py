"""The recorded measurement: its summary follows from its samples, and the docs quote it."""

import json
from typing import Any

from tests.health.link_down import OUT_WITHIN_S, ROOT
from tests.health.record_link_down import summarise

RESULT = ROOT / "benchmarks/results/2026-11-30-health-link-down/link_down.json"


def result() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(RESULT.read_text())
    return loaded


def test_the_summary_follows_from_the_samples_and_the_aim_is_met() -> None:
    assert result()["summary"] == summarise(result()["samples"])
    assert result()["summary"]["most_s"] < OUT_WITHIN_S
    assert {"command", "machine", "versions", "commit", "source_sha256"} <= set(result()["about"])


def test_the_docs_quote_it() -> None:
    summary = result()["summary"]
    words = f"{summary['least_s']} to {summary['most_s']} s in {summary['runs']} runs"
    for page in ("docs/operations.md", "docs/adr/0701-drain-through-the-fleet-file.md"):
        assert words in (ROOT / page).read_text(), page
