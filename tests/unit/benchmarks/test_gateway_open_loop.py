"""The open-loop part against targets that are a number each: what it finds, where it takes latencies, what becomes of it."""

from collections import Counter
from typing import Any

import pytest

from benchmarks.gateway import open_loop
from benchmarks.gateway.histogram import packed
from benchmarks.gateway.open_loop import OpenLoop, OpenPlan
from benchmarks.gateway.points import Length, Limits
from benchmarks.gateway.report import spread_line
from benchmarks.gateway.saturation import NEAR, SOON_MS, Bracket, What, after
from benchmarks.gateway.summary import summarise
from benchmarks.gateway.targets import Target

SERVED = {"relay": 2000.0, "gateway": 1500.0, "litellm": 400.0, "direct": 1e9}
SOON = packed(Counter({1000: 100}))
LATER = packed(Counter({1600: 100}))
"""About a second."""
BEGINS_SOON_UP_TO = 900.0
SECOND = Length(0, 1)
PLAN = OpenPlan(8, 8, 16, 2, SECOND, SECOND, SECOND, SECOND, SECOND, Limits(1, 1), 5)


NAMES = ["relay", "gateway", "litellm"]


def target(name: str) -> Target:
    return Target(name, 1, "/", 1, 1)


def measured(mode: str, each: Target, connections: int, length: Length, limits: Limits, *more: float) -> dict[str, Any]:
    rate = more[0]
    over = max(0.0, rate - SERVED[each.name])
    counts = {"sent": rate, "ok": rate, "events": rate, "open_at_start": 1, "open_at_end": 1 + over, "cpu_s": 0.7}
    if mode == "streams" and over:
        counts["events"] = 0.5 * rate
    late = each.name != "direct" and rate > BEGINS_SOON_UP_TO
    times = {"latency": SOON, "first_event": LATER if late else SOON, "gap": SOON, "delay": SOON}
    about = {"target": each.name, "seconds": 1.0, "failed": 0, "unanswered": 0, "void": False, "cores": [0.7, 0.3]}
    return {**about, **counts, **times}


def open_loop_into(points: list[dict[str, Any]]) -> OpenLoop:
    return OpenLoop(
        PLAN,
        target("direct"),
        [target(name) for name in NAMES],
        lambda length, _: length,
        lambda result, **about: points.append({**about, **result}),
    )


def test_each_saturation_is_found_and_latencies_are_taken_at_the_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_loop, "point", measured)
    points: list[dict[str, Any]] = []
    loop = open_loop_into(points)
    for what in What:
        found = loop.search(
            what, dict.fromkeys(NAMES, 300.0) | {"gateway": 1200.0, "relay": 1600.0}, {"relay": Bracket()}
        )
        assert all(SERVED[name] / NEAR / 1.02 <= rate <= 1.04 * SERVED[name] for name, rate in found.items())
        loop.latencies(what, found)
        taken = {each["target"]: each["rate"] for each in points if each["what"] == what and each["kind"] == "latency"}
        assert taken["relay"] == taken["gateway"] == pytest.approx(0.7 * found["gateway"], abs=0.1)
        assert taken["litellm"] == pytest.approx(0.7 * found["litellm"], abs=0.1)
    loop.spread(found["gateway"])
    loop.soon(found["gateway"])
    memory = [{"target": name, "streams": 1, "left_open": 0, "before_bytes": 1, "during_bytes": 2} for name in NAMES]
    opened = summarise({"memory": memory, "unary": [], "search": [], "streams": [], "open": points})["open"]
    assert opened["gateway"]["unary"]["added_p99_ms"] == 0.0
    assert opened["gateway"]["streams"]["added_itl_p99_ms"] == 0.0
    assert opened["relay"]["streams"]["events_at"] == opened["gateway"]["streams"]["events_at"]
    assert BEGINS_SOON_UP_TO / NEAR <= opened["gateway"]["streams"]["soon_events_per_s"] <= BEGINS_SOON_UP_TO
    assert opened["gateway"]["streams"]["spread_events_at"] == opened["gateway"]["streams"]["events_at"]
    assert opened["gateway"]["streams"]["spread_added_itl_p99_ms"] == 0.0
    assert "within their interval, at" in spread_line(opened["gateway"]["streams"])
    assert "soon_events_per_s" not in opened["relay"]["streams"]
    assert opened["gateway"]["streams"]["added_ttft_p99_ms"] > SOON_MS, "at 70 % of 1,500 it does not begin soon"


def test_a_rate_that_is_not_served_in_a_slow_second_is_lowered_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    points: list[dict[str, Any]] = []
    slow_from = 20

    def slower(mode: str, each: Target, *more: Any) -> dict[str, Any]:
        result = measured(mode, each, *more)
        behind = each.name == "gateway" and len(points) >= slow_from and more[3] > 1000.0
        return result | ({"ok": 0} if behind else {})

    monkeypatch.setattr(open_loop, "point", slower)
    found = open_loop_into(points).search(What.UNARY, dict.fromkeys(NAMES, 1400.0) | {"litellm": 300.0}, {})
    searched = [each for each in points[:slow_from] if each["target"] == "gateway"]
    assert after(searched).served > 1400.0, "before the slow seconds it was served"
    assert 1000.0 / NEAR < found["gateway"] <= 1000.0
    for name in NAMES:
        probes = [each for each in points if each["target"] == name]
        assert found[name] == after(probes).served == probes[-1]["rate"]


def test_a_target_that_serves_nothing_any_more_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    points: list[dict[str, Any]] = []
    monkeypatch.setattr(open_loop, "point", measured)
    monkeypatch.setitem(SERVED, "litellm", 0.0)
    found = open_loop_into(points).search(
        What.STREAMS, dict.fromkeys(NAMES, 1200.0), {"litellm": Bracket(300.0, 310.0)}
    )
    assert set(found) == {"relay", "gateway"}
