"""The gate in virtual time: never much worse than computing everything, and much better where a tier is fast."""

import pytest

from benchmarks.kv_tiers.replay import Arrival, Replay, Rule
from benchmarks.kv_tiers.replay_throttle import (
    ALLOWED,
    BREAK_EVEN,
    CHANGING,
    CONSTANT,
    RATES_PER_S,
    WRONG_START,
    Case,
    compare,
    replay,
)

REQUESTS = 450

CASES = [*CONSTANT, *WRONG_START, *CHANGING]


@pytest.mark.parametrize("per_s", RATES_PER_S)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_gate_is_never_more_than_5_percent_worse_than_recompute_at_p99(case: Case, per_s: float) -> None:
    (row,) = compare([case], REQUESTS, per_s, seed=1)
    assert row["gate_p99_over_no_tier"] <= ALLOWED


def test_a_fast_tier_is_used() -> None:
    """Without this, a gate that refuses everything would pass the test above."""
    (row,) = compare([case for case in CONSTANT if case.name == "10 x B*"], REQUESTS, 1.2, seed=1)
    assert row["share_of_hit_tokens_loaded"] > 0.95
    assert row["gate_p50_over_no_tier"] < 0.5
    assert row["gate_p99_over_no_tier"] < 0.7


def test_a_start_up_measurement_that_was_far_too_low_is_unlearnt_by_probes() -> None:
    (row,) = compare([case for case in WRONG_START if case.known == 0.1], REQUESTS, 1.2, seed=1)
    assert row["gate_p50_over_no_tier"] < 0.6
    assert row["share_of_hit_tokens_loaded"] > 0.8


def test_a_slow_tier_without_a_gate_runs_away() -> None:
    """The trouble that the gate is for is in this replay: one store of a third of B*, the engine waiting for it."""
    (row,) = compare([case for case in CONSTANT if case.name == "0.35 x B*"], REQUESTS, 1.2, seed=1)
    assert row["ttft_p99_s"][Rule.SYNC] > 10 * row["ttft_p99_s"][Rule.NONE]
    assert row["ttft_p99_s"][Rule.ASYNC] > 3 * row["ttft_p99_s"][Rule.NONE]


def one_request(rule: Rule, times_break_even: float, tokens: int = 16_384, hit: int = 8_192) -> float:
    trace = [Arrival(at=1.0, tokens=tokens, hit_tokens=hit, prefill_factor=1.0, load_factor=1.0)]
    return replay(trace, Case("", lambda _now: times_break_even, times_break_even), rule).ttft_s[0]


def test_one_request_takes_what_the_cost_model_says() -> None:
    assert one_request(Rule.NONE, 1.0) == pytest.approx(16_384 / 53_000)
    assert one_request(Rule.SYNC, 2.0) == pytest.approx(0.002 + 8_192 / 53_000 / 2 + 8_192 / 53_000, rel=1e-3)
    assert one_request(Rule.ASYNC, 2.0) == pytest.approx(one_request(Rule.SYNC, 2.0), rel=1e-3)
    assert one_request(Rule.GATE, 2.0) == pytest.approx(one_request(Rule.SYNC, 2.0), rel=1e-3)
    assert one_request(Rule.GATE, 0.5) == pytest.approx(one_request(Rule.NONE, 1.0))


def test_a_load_is_cut_off_at_its_deadline_and_keeps_its_whole_chunks() -> None:
    trace = [Arrival(at=1.0, tokens=16_384, hit_tokens=8_192, prefill_factor=1.0, load_factor=1.0)]
    run = Replay(trace, Rule.GATE, lambda _now: 0.5 * BREAK_EVEN, known_bytes_per_s=4 * BREAK_EVEN).run()
    assert 0 < run.loaded_tokens < 8_192
    assert run.loaded_tokens % 256 == 0
    assert run.ttft_s[0] < 16_384 / 53_000 + 1.35 * (0.002 + 8_192 / 53_000 / 4)
