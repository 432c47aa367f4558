import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.kv.gate.decision import Choice, Policy, Reason
from prime_inference.kv.gate.estimates import PrefillEstimate, TierEstimate
from prime_inference.kv.gate.gate import LoadGate

GB = 10**9


def test_loads_that_share_a_tier_are_not_taken_for_a_slow_tier() -> None:
    """Four loads at once through 4 GB/s, a second each: the tier still moves 4 GB/s."""
    tier = TierEstimate(4 * GB, fixed_s=0.0, now=0.0)
    loads = [tier.started(0.0) for _ in range(4)]
    assert tier.next_bytes_per_s == pytest.approx(4 * GB / 5)
    for load in loads:
        tier.ended(load, GB, now=1.0)
    assert tier.bytes_per_s == pytest.approx(4 * GB)
    assert tier.next_bytes_per_s == pytest.approx(4 * GB)


@given(st.floats(0.05, 20.0), st.floats(0.0, 0.01))
def test_the_estimate_comes_to_the_tiers_true_bandwidth_from_either_side(true_gb: float, fixed_s: float) -> None:
    tier = TierEstimate(1 * GB, fixed_s, now=0.0)
    now = 0.0
    for _ in range(40):
        load = tier.started(now)
        now += fixed_s + 0.1 / true_gb
        tier.ended(load, GB // 10, now)
    assert tier.bytes_per_s == pytest.approx(true_gb * GB, rel=0.05)


def test_a_tier_that_turned_slow_is_believed_within_two_loads() -> None:
    tier = TierEstimate(10 * GB, 0.0, now=0.0)
    for now in (0.0, 10.0):
        tier.ended(tier.started(now), GB, now + 10.0)
    assert tier.bytes_per_s < 3 * GB


def test_a_load_that_moved_nothing_lowers_the_estimate_and_a_failed_one_does_not() -> None:
    tier = TierEstimate(8 * GB, 0.0, now=0.0)
    tier.failed(tier.started(0.0), 1.0)
    assert tier.bytes_per_s == 8 * GB
    tier.ended(tier.started(1.0), 0, 2.0)
    assert tier.bytes_per_s == 5 * GB
    assert tier.in_flight == 0


def test_the_prefill_rate_follows_and_ignores_what_says_nothing() -> None:
    prefill = PrefillEstimate(1_000.0)
    for _ in range(40):
        prefill.observed(4_000, 1.0)
    assert prefill.tokens_per_s == pytest.approx(4_000, rel=0.01)
    prefill.observed(0, 1.0)
    prefill.observed(10, 0.0)
    assert prefill.tokens_per_s == pytest.approx(4_000, rel=0.01)


def test_the_gate_counts_its_decisions_and_each_load_in_flight_lowers_the_next_ones_share() -> None:
    gate = LoadGate(48_408, {"l2": TierEstimate(6 * GB, 0.0, now=0.0)}, PrefillEstimate(53_000), Policy())
    taken = 0
    while gate.decide(16_384, [("l2", 16_384)], queued_tokens=0, now=0.0).choice is Choice.TAKE_ALL:
        gate.started("l2", 0.0)
        taken += 1
    assert taken == 2  # 6 GB/s is 2.3 times break-even: a third load would have less than break-even
    assert gate.decisions[Choice.TAKE_ALL, Reason.FASTER] == 2
    assert gate.decisions[Choice.RECOMPUTE, Reason.SLOWER] == 1
