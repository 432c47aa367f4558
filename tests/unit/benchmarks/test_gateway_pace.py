"""A point for which the target's core was slower than in the rest of the run says nothing of the target."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.gateway import points
from benchmarks.gateway.pace import LOOKS_FIRST, PATIENCE_S, Pace, on_target_core
from benchmarks.gateway.points import TRIES, Length, Limits, Points
from benchmarks.gateway.targets import Target

LIMITS = Limits(load_core=0.85, others=0.15, slower=0.15)
GATEWAY = Target("gateway", 1, "/", 1, 1)


def pace_of(laps: list[float], slept: list[float] | None = None) -> Pace:
    """The first looks take 1 s each; the last of `laps` goes on for ever."""
    each: Iterator[float] = iter([1.0] * LOOKS_FIRST + laps)
    last = laps[-1]
    return Pace(lambda: next(each, last), (slept if slept is not None else []).append)


def running(monkeypatch: pytest.MonkeyPatch, cores: Callable[[int], list[float]]) -> list[int]:
    """Instead of the load generator: a point in which the target had 0.5 of its core. Returns the runs so far."""
    runs: list[int] = []

    def run(*_: Any) -> dict[str, Any]:
        runs.append(len(runs))
        return {"cpu_s": 0.5, "cores": cores(len(runs))}

    monkeypatch.setattr(points, "run", run)
    return runs


def taken(pace: Pace) -> dict[str, Any]:
    return Points(LIMITS, pace).take("open", GATEWAY, 1, Length(0.0, 1.0))


def alone(_: int) -> list[float]:
    return [0.5, 0.5]


def test_a_point_at_the_runs_pace_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = running(monkeypatch, alone)
    result = taken(pace_of([1.1, 1.14]))
    assert (result["void"], result["tries"], result["slower"], len(runs)) == (False, 1, [0.1, 0.14], 1)


def test_a_point_waits_for_a_slow_core(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, slept = running(monkeypatch, alone), list[float]()
    result = taken(pace_of([1.5, 1.5, 1.0, 1.0], slept))
    assert (result["void"], len(slept), len(runs)) == (False, 2, 1)


def test_a_point_after_which_the_core_is_slow_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = running(monkeypatch, alone)
    result = taken(pace_of([1.0, 1.4, 1.0, 1.0]))
    assert (result["void"], result["tries"], len(runs)) == (False, 2, 2)


def test_a_core_that_stays_slow_makes_the_point_void(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, slept = running(monkeypatch, alone), list[float]()
    result = taken(pace_of([1.4], slept))
    assert (result["void"], len(runs)) == (True, TRIES)
    assert sum(slept) == TRIES * PATIENCE_S


def test_a_faster_look_is_the_new_best() -> None:
    pace = pace_of([0.5, 1.0])
    assert pace.slower() == 0.0
    assert pace.slower() == 1.0


def test_a_crowded_core_makes_the_point_void_at_any_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    running(monkeypatch, lambda number: [0.9, 0.5] if number == 1 else [0.5, 0.5])
    result = taken(pace_of([1.0]))
    assert (result["void"], result["tries"], result["others"]) == (False, 2, 0.0)


def test_a_real_lap_takes_a_few_milliseconds() -> None:
    assert 0.0001 < on_target_core() < 1.0
