"""Every summary is recomputed from its raw samples, and every number the README quotes from the summary."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.local.summary import summarise

ROOT = Path(__file__).parents[3]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*-local/local.json"))
ON_GPU = sorted((ROOT / "benchmarks" / "results").glob("2026-11-30-h200*-up/local.json"))


def load(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    return result


def test_there_is_a_result() -> None:
    assert RESULTS


@pytest.mark.parametrize("path", [*RESULTS, *ON_GPU], ids=lambda path: path.parent.name)
def test_a_summary_follows_from_its_samples(path: Path) -> None:
    result = load(path)
    assert result["summary"] == summarise(result["samples"])
    assert {"command", "machine", "versions", "commit", "source_sha256"} <= set(result["about"])


def test_the_readme_quotes_the_newest_result() -> None:
    summary = load(RESULTS[-1])["summary"]
    readme = (ROOT / "README.md").read_text()
    workers = max(summary["idle_cpu_percent_prefill-0"], summary["idle_cpu_percent_decode-0"])
    for number, unit in (
        (summary["ready_s"], "s"),
        (workers, "% of a core"),
        (summary["stream_tokens_per_s_median"], "tok/s"),
        (summary["memory_mib"], "MiB"),
    ):
        assert f"**{number} {unit}**" in readme, (number, unit)
    assert RESULTS[-1].parent.name in readme


def test_the_readme_quotes_the_runs_on_gpus() -> None:
    readme = (ROOT / "README.md").read_text()
    assert ON_GPU
    for path in ON_GPU:
        result = load(path)
        assert all("H200" in gpu for gpu in result["about"]["machine"]["gpus"])
        assert path.parent.name in readme
        assert f"{result['summary']['stream_tokens_per_s_median']} tok/s" in readme
    assert f"{load(ON_GPU[-1])['summary']['ready_s']} s" in readme
