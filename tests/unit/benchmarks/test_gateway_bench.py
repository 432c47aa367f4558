"""The histograms, the search's verdict, and every kept result: its summary, plot and page follow from its samples."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gateway import histogram, report
from benchmarks.gateway.bench import PARTS, sustained
from benchmarks.gateway.plot import svg
from benchmarks.gateway.saturation import Verdict, What, judge
from benchmarks.gateway.summary import BUSY_LIMIT, summarise

RESULTS = sorted(report.RESULTS.glob("*-gateway/result.json"))
LARGEST_FILE_BYTES = 300_000


def points_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The first results have no open-loop part."""
    files = [folder / f"{part}.json" for part in PARTS]
    return {file.stem: json.loads(file.read_text()) for file in files if file.exists() or file.stem != "open"}


@given(st.dictionaries(st.integers(0, 3000), st.integers(1, 10**6)))
def test_a_histogram_survives_its_short_form(counts: dict[int, int]) -> None:
    assert histogram.unpacked(histogram.packed(Counter(counts))) == Counter(counts)


@given(st.integers(0, 10**12))
def test_a_bucket_is_at_most_a_sixtyfourth_wide(value: int) -> None:
    shift = max(0, value.bit_length() - 7)  # as load.c counts it
    bucket = shift * histogram.STEPS + (value >> shift)
    assert abs(histogram.middle_ns(bucket) - value) <= max(0.5, value / histogram.STEPS / 2)


def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed() -> None:
    samples = Counter({histogram.STEPS: 98, 2 * histogram.STEPS: 1, 3 * histogram.STEPS: 1})
    assert histogram.percentile_ms(samples, 0.98) == histogram.middle_ns(histogram.STEPS) / 1e6
    assert histogram.percentile_ms(samples, 0.99) == histogram.middle_ns(2 * histogram.STEPS) / 1e6
    assert histogram.percentile_ms(samples, 1.0) == histogram.middle_ns(3 * histogram.STEPS) / 1e6


def test_a_rate_is_borne_when_all_arrives_in_time() -> None:
    soon, late = histogram.packed(Counter({1000: 1000})), histogram.packed(Counter({1000: 980, 2000: 20}))
    assert sustained({"failed": 0, "events": 1000, "seconds": 1.0, "delay": soon}, 1000)
    assert not sustained({"failed": 0, "events": 1000, "seconds": 1.0, "delay": late}, 1000)
    assert not sustained({"failed": 0, "events": 900, "seconds": 1.0, "delay": soon}, 1000)
    assert not sustained({"failed": 1, "events": 1000, "seconds": 1.0, "delay": soon}, 1000)
    assert not sustained({"failed": 0, "events": 0, "seconds": 1.0}, 1000)


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_a_summary_and_its_plot_follow_from_the_samples(path: Path) -> None:
    result = json.loads(path.read_text())
    assert result["summary"] == summarise(points_of(path.parent))
    assert (path.parent / "gateway.svg").read_text() == svg(result["summary"])
    assert {"command", "machine", "versions", "commit", "source_sha256"} <= set(result["about"])
    assert all(file.stat().st_size < LARGEST_FILE_BYTES for file in path.parent.iterdir())


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_a_kept_verdict_follows_from_its_probe(path: Path) -> None:
    asked_again = "again" in json.loads(path.read_text())["settings"]
    for probe in points_of(path.parent).get("open", []):
        if probe["kind"] == "probe":
            verdict = judge(What(probe["what"]), probe, probe["rate"])
            # Before a rate was asked for again, no unary answer was late.
            former = not asked_again and probe["what"] == What.UNARY and verdict is Verdict.LATE
            assert former or verdict == probe["verdict"]


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
def test_a_result_counts_no_point_with_a_full_load_core(path: Path) -> None:
    result = json.loads(path.read_text())
    assert result["settings"]["limits"]["load_core"] == BUSY_LIMIT
    assert result["summary"]["load_core_busy_most"] <= BUSY_LIMIT
    streams = points_of(path.parent)["streams"]
    assert min(point["upstream_streams"] for point in streams) >= 200


def test_the_page_has_the_newest_results_numbers() -> None:
    page = report.DOC.read_text()
    assert page.count(report.BEGIN) == page.count(report.END) == 1
    if RESULTS:
        assert report.section(report.newest()) in page
