"""From made-up points to the numbers and lines that a reader sees."""

import os
from collections import Counter
from typing import Any

from benchmarks.gateway.histogram import packed
from benchmarks.gateway.pace import lap_ms
from benchmarks.gateway.plot import svg
from benchmarks.gateway.report import goals, laps_line, open_table, table
from benchmarks.gateway.summary import summarise

MIB = 2**20


def of_ms(*values: float) -> str:
    """A histogram with one sample in the bucket of each value."""
    buckets = []
    for value in values:
        ns = round(value * 1e6)
        shift = max(0, ns.bit_length() - 7)
        buckets.append(shift * 64 + (ns >> shift))
    return packed(Counter(buckets))


def point(target: str, **more: Any) -> dict[str, Any]:
    usual = {"seconds": 1.0, "ok": 100, "events": 1000, "failed": 0, "unanswered": 0, "cpu_s": 0.5, "cores": [0.9, 0.4]}
    return {"target": target, "void": False, **usual, **more}


def points_of(name: str, ok: int, ms: float) -> dict[str, list[dict[str, Any]]]:
    latency = {"kind": "latency", "at": name, "rate": 70.0}
    both = {"at": name, "rate": 700}
    slow = {"first_event": of_ms(ms), "gap": of_ms(10 + ms), "delay": of_ms(ms)}
    soon = {"first_event": of_ms(0.1), "gap": of_ms(10), "delay": of_ms(0.1)}
    return {
        "memory": [
            {"target": name, "streams": 1000, "left_open": 3, "before_bytes": 50 * MIB, "during_bytes": 100 * MIB}
        ],
        "unary": [
            point(name, kind="saturation", ok=ok),
            point(name, kind="saturation", ok=10 * ok, void=True, cores=[0.9, 0.99]),
            point(name, **latency, latency=of_ms(ms, ms)),
            point("direct", **latency, latency=of_ms(0.1, 0.1)),
        ],
        "search": [point(name, rate=1000, sustained=True), point(name, rate=2000, sustained=False)],
        "streams": [point(name, **both, **slow), point("direct", **both, **soon)],
    }


def made_up() -> dict[str, Any]:
    parts: dict[str, list[dict[str, Any]]] = {"memory": [], "unary": [], "search": [], "streams": []}
    rows = (("relay", 1000, 0.5), ("gateway", 700, 1.0), ("gateway-trip", 400, 2.0), ("litellm", 50, 20.0))
    for name, ok, ms in rows:
        for part, points in points_of(name, ok, ms).items():
            parts[part] += points
    return summarise(parts)


def test_what_is_void_does_not_count() -> None:
    summary = made_up()
    assert summary["targets"]["gateway"]["requests_per_s"] == 700.0
    assert summary["void_points"] == 4
    assert summary["load_core_busy_most"] == 0.4


def test_added_is_a_percentile_less_the_same_percentile_straight() -> None:
    gateway = made_up()["targets"]["gateway"]
    assert abs(gateway["added_p50_ms"] - 0.9) < 0.02
    assert abs(gateway["added_itl_p99_ms"] - 1.0) < 0.2
    assert gateway["events_per_s"] == 1000
    assert gateway["idle_mib"] == 100.0
    assert gateway["idle_added_mib"] == 50.0


def test_ratios_are_to_the_bare_relay_and_to_litellm() -> None:
    ratios = made_up()["ratios"]
    assert ratios["relay"]["gateway"]["requests_per_s"] == 0.7
    assert ratios["litellm"]["gateway"]["requests_per_s"] == 14.0


def test_a_missed_aim_is_printed_as_one() -> None:
    lines = goals(made_up())
    assert "| unary, of the bare relay's rate | 0.7 | ≥ 0.60 | met |" in lines
    assert "| unary, each request a trip to Valkey | 0.4 | ≥ 0.45 | **missed** |" in lines
    assert "| streamed events a second | 1000 | ≥ 20000 | **missed** |" in lines


def opened(name: str, added_ms: float, rate: float) -> list[dict[str, Any]]:
    unary = {"what": "unary", "rate": rate}
    streams = {"what": "streams", "rate": 7000.0}
    slow = {"first_event": of_ms(1 + added_ms), "gap": of_ms(10 + added_ms)}
    return [
        point(name, kind="probe", what="unary", rate=1000.0, verdict="served"),
        point(name, kind="probe", what="unary", rate=1100.0, verdict="full"),
        point(name, kind="probe", what="streams", rate=1500.0, verdict="late"),
        point(name, kind="latency", **unary, latency=of_ms(1 + added_ms), cores=[0.7, 0.4]),
        point("direct", kind="latency", **unary, latency=of_ms(1)),
        point("direct", kind="latency", what="unary", rate=1.0, latency=of_ms(500)),
        point(name, kind="latency", **streams, **slow),
        point("direct", kind="latency", **streams, first_event=of_ms(1), gap=of_ms(10)),
    ]


def with_open_loop() -> dict[str, Any]:
    parts: dict[str, list[dict[str, Any]]] = {"memory": [], "unary": [], "search": [], "streams": [], "open": []}
    for name, added_ms in (("relay", 0.5), ("gateway", 0.9), ("gateway-trip", 2.0), ("litellm", 20.0)):
        for part, points in points_of(name, 700, 6.0).items():
            parts[part] += points
        parts["open"] += opened(name, added_ms, 700.0)
    return summarise(parts)


def test_both_definitions_of_an_added_latency_are_printed() -> None:
    lines = goals(with_open_loop())
    assert any(line.startswith("| added p99, ms, at 70 % of the closed-loop rate | 5.8") for line in lines)
    assert any(line.startswith("| added p99, ms, at 70 % of the open-loop rate | 0.8") for line in lines)
    assert any(line.startswith("| added p50, of LiteLLM's, at 70 % of the open-loop rate | 0.04") for line in lines)


def test_the_open_loop_rates_lie_under_every_rate_that_was_not_served() -> None:
    gateway = with_open_loop()["open"]["gateway"]
    assert gateway["unary"]["requests_per_s"] == 1000.0
    assert gateway["unary"]["requests_at"] == 700.0
    assert gateway["unary"]["core_busy"] == 0.7
    assert gateway["streams"]["events_per_s"] == 1000.0  # what the search for the highest rate saw with an idle core
    assert abs(gateway["streams"]["added_itl_p99_ms"] - 0.9) < 0.2


def test_the_open_loop_table_and_plot_have_a_row_a_target() -> None:
    summary = with_open_loop()
    assert [line.split("|")[1].strip() for line in open_table(summary["open"])[4:-1]] == [
        "bare relay",
        "this gateway",
        "… each request a trip",
        "LiteLLM",
    ]
    assert svg(summary).count("LiteLLM") == 5


def test_a_target_whose_points_are_all_void_has_no_number() -> None:
    summary = made_up()
    nothing = summarise(
        {part: [each | {"void": True} for each in points] for part, points in points_of("relay", 1000, 1.0).items()}
    )["targets"]["relay"]
    assert nothing["requests_per_s"] is None
    assert nothing["added_p99_ms"] is None
    summary["targets"]["relay"] = nothing
    assert "| bare relay | void | void | void | void | void | void | void | 100 | 50 | 3 |" in table(summary["targets"])
    assert svg(summary).count(">void<") == 3


def test_the_page_says_how_steady_the_targets_core_was() -> None:
    assert laps_line({}) == []
    (line,) = laps_line({"laps_ms": {"least": 2.66, "median": 3.1, "most": 4.81}})
    assert "2.7 ms at best, 3.1 ms at the median and 4.8 ms at worst" in line


def test_a_lap_of_the_targets_core_takes_a_few_milliseconds_and_leaves_the_thread_where_it_was() -> None:
    cores = os.sched_getaffinity(0)
    assert 0.1 < lap_ms() < 1000
    assert os.sched_getaffinity(0) == cores
