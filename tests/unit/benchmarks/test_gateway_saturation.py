"""What a probe says, and that the search ends close under the rate at which a target stops serving."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gateway.histogram import packed
from benchmarks.gateway.open_loop import MOST_PROBES, rates_of
from benchmarks.gateway.saturation import NEAR, Bracket, Verdict, What, after, judge, of_search

SOON = packed(Counter({1000: 100}))
LATE = packed(Counter({1000: 90, 2000: 10}))
GOOD: dict[str, Any] = {
    "failed": 0,
    "unanswered": 0,
    "seconds": 1.0,
    "sent": 1000,
    "ok": 995,
    "events": 990,
    "open_at_start": 3,
    "open_at_end": 9,
    "delay": SOON,
    "latency": SOON,
    "cores": [0.8, 0.3],
    "cpu_s": 0.78,
}


@pytest.mark.parametrize(
    ("what", "change", "verdict"),
    [
        (What.UNARY, {}, Verdict.SERVED),
        (What.STREAMS, {}, Verdict.SERVED),
        (What.UNARY, {"failed": 1}, Verdict.FAILED),
        (What.UNARY, {"unanswered": 1}, Verdict.FAILED),
        (What.UNARY, {"ok": 900}, Verdict.BEHIND),
        (What.STREAMS, {"events": 900}, Verdict.BEHIND),
        (What.UNARY, {"open_at_end": 40}, Verdict.BACKLOG),
        (What.STREAMS, {"open_at_end": 40}, Verdict.SERVED),
        (What.STREAMS, {"delay": LATE}, Verdict.LATE),
        (What.UNARY, {"latency": LATE}, Verdict.LATE),
        (What.UNARY, {"cores": [0.98, 0.3], "cpu_s": 0.96}, Verdict.FULL),
        (What.UNARY, {"cores": [1.0, 0.3], "cpu_s": 0.2}, Verdict.SERVED),
    ],
)
def test_a_rate_is_served_when_nothing_speaks_against_it(what: What, change: dict[str, Any], verdict: Verdict) -> None:
    assert judge(what, GOOD | change, 1000) is verdict


@given(st.floats(10, 1e5), st.floats(0.2, 5))
def test_the_search_ends_close_under_the_limit(limit: float, wrong_by: float) -> None:
    bracket, probes = Bracket(), 0
    while (rate := bracket.next_rate(limit * wrong_by)) is not None:
        bracket = bracket.narrowed(rate, rate <= limit)
        probes += 1
    assert limit / NEAR <= bracket.served <= limit
    assert wrong_by < 0.7 or wrong_by > 1.4 or probes <= MOST_PROBES


@given(st.lists(st.tuples(st.floats(1, 1000), st.booleans())))
def test_no_rate_counts_as_served_at_or_above_one_that_was_not(probes: list[tuple[float, bool]]) -> None:
    bracket = Bracket()
    for rate, served in probes:
        bracket = bracket.narrowed(rate, served)
        assert bracket.served < bracket.beyond
    refused = [rate for rate, served in probes if not served]
    assert all(bracket.served < rate for rate in refused)


def test_a_void_probe_shows_nothing_served() -> None:
    probe = {"rate": 100.0, "verdict": "served", "void": False}
    assert after([probe]).served == 100.0
    assert after([probe, probe | {"rate": 120.0, "void": True}]) == Bracket(100.0, 120.0)


def test_the_first_search_tells_which_rates_left_the_core_time() -> None:
    found = of_search(
        [
            {"rate": 1000, "sustained": True, "void": False, "cores": [0.6, 0.3], "cpu_s": 0.6, "seconds": 1.0},
            {"rate": 2000, "sustained": True, "void": False, "cores": [1.0, 0.4], "cpu_s": 1.0, "seconds": 1.0},
        ]
    )
    assert found == Bracket(1000.0, 2000.0)


def test_latency_is_taken_at_the_gateways_rate_and_elsewhere_only_below_it() -> None:
    rates = rates_of({"relay": 2000.0, "gateway": 1000.0, "litellm": 30.0})
    assert rates == {"relay": 700.0, "gateway": 700.0, "litellm": 21.0}
    assert rates_of({"relay": 2000.0}) == {"relay": 1400.0}
