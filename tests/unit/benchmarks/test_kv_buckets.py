"""The replay behind token buckets: its model has the article's numbers, its summary follows from its samples, docs quote it."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kv_tiers.bucket_plot import svg
from benchmarks.kv_tiers.buckets import ARMS, predicted, summary
from benchmarks.kv_tiers.token_bucket import DEPTH_S, Bucket

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "benchmarks/results/2026-11-30-kv-buckets"


def rows() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / "result.json").read_text())["rows"]
    return found


def test_scaled_down_the_utilisations_are_the_articles() -> None:
    model = {arm.name: predicted(arm, 100.0) for arm in ARMS}
    assert model["1 store, asynchronous"]["rho"] == pytest.approx(1.06, abs=0.005)
    assert model["8 stores, asynchronous"]["rho"] == pytest.approx(0.089, abs=0.0005)
    assert model["1 store, asynchronous"]["backlog_s"] == pytest.approx(6.0, abs=0.5)
    assert model["1 store, asynchronous, gate"] == model["no tier"]  # it computes, since the tier is below B*


def test_a_bucket_lets_through_its_rate() -> None:
    bucket = Bucket(rate=1e6)
    began = time.monotonic()
    for _ in range(20):
        bucket.take(10_000)
    assert time.monotonic() - began >= 0.2 - DEPTH_S - 0.001


def test_summaries_follow_from_the_samples_and_the_plot_from_both() -> None:
    result = json.loads((FOLDER / "result.json").read_text())
    for row in result["rows"]:
        assert row["summary"] == summary(row["ttft_s"], row["hits"])
    drawn = svg(result["arrivals_s"], {row["arm"]["name"]: row["ttft_s"] for row in result["rows"]})
    assert (FOLDER / "ttft.svg").read_text() == drawn


def test_the_docs_quote_the_recorded_times() -> None:
    doc = (ROOT / "docs/kv.md").read_text()
    for row in rows():
        told, model = row["summary"], row["predicted"]
        mean = f"{model['mean_ttft_s']:.3f}" if model["rho"] < 1 else f"none; {model['backlog_s']:.1f} behind"
        line = (
            f"| {row['arm']['name']} | {model['rho']:.3f} | {told['p50_s']:.3f} | {told['p99_s']:.3f} | "
            f"{told['mean_s']:.3f} | {mean} | {told['hit_share']:.2f} | {row['mb_per_s_a_store']:.2f} |"
        )
        assert line in doc
