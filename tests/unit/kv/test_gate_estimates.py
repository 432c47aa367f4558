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


def test_a_late_load_lowers_the_estimate_and_a_failed_one_does_not() -> None:
    tier = TierEstimate(8 * GB, 0.0, now=0.0)
    tier.failed(tier.started(0.0), 1.0)
    assert tier.bytes_per_s == 8 * GB
    load = tier.started(1.0)
    tier.late(load, 7 * GB, 2.0)
    assert tier.bytes_per_s == 5 * GB
    tier.failed(load, 2.5)
    assert tier.in_flight == 0


def test_a_load_that_was_waited_for_longer_than_it_takes_to_compute_is_below_break_even_at_once() -> None:
    """Start-up said a hundred times what it was: seven such loads were needed, each of which doubled a time to first token."""
    tier = TierEstimate(100 * GB, 0.0, now=0.0)
    tier.late(tier.started(0.0), 1 * GB, 1.0)
    assert tier.bytes_per_s == 1 * GB


def test_a_late_probe_of_a_tier_that_is_known_as_slow_is_no_news() -> None:
    tier = TierEstimate(1 * GB, 0.0, now=0.0)
    tier.late(tier.started(20.0), GB, 20.1)
    assert tier.bytes_per_s == 1 * GB
    assert tier.sampled_at == 20.1


@given(st.floats(0.1, 50.0), st.integers(0, 3))
def test_what_comes_after_it_was_given_up_still_says_how_fast_the_tier_is(true_gb: float, others: int) -> None:
    tier = TierEstimate(1 * GB, 0.002, now=0.0)
    for now in range(10, 400, 10):
        took_s = 0.002 + 0.1 * (others + 1) / true_gb
        shared = [tier.started(now) for _ in range(others)]
        late = tier.started(now)
        tier.late(late, GB // 10, now + 0.3 * took_s)
        tier.ended(late, GB // 10, now + took_s)
        for load in shared:
            tier.ended(load, GB // 10, now + took_s)
    assert tier.in_flight == 0
    assert tier.bytes_per_s == pytest.approx(true_gb * GB, rel=0.05)


def test_a_miss_that_took_longer_than_its_load_should_have_is_a_slow_tier_and_a_quick_one_is_a_miss() -> None:
    tier = TierEstimate(10 * GB, 0.01, now=0.0)
    tier.missed(tier.started(0.0), GB, answered_at=0.05, now=0.06)
    assert tier.bytes_per_s == 10 * GB
    tier.missed(tier.started(1.0), GB, answered_at=3.01, now=3.02)
    assert tier.bytes_per_s == pytest.approx(GB / 2)
    assert tier.in_flight == 0


def test_a_load_that_lay_there_during_a_long_step_is_not_taken_for_a_slow_one() -> None:
    tier = TierEstimate(10 * GB, 0.0, now=0.0)
    tier.ended(tier.started(0.0), GB, now=3.1, unseen_s=3.0)
    assert tier.bytes_per_s == pytest.approx(10 * GB)
    tier.missed(tier.started(10.0), GB, answered_at=10.05, now=13.0)
    assert tier.bytes_per_s == pytest.approx(10 * GB)


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
