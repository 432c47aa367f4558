import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from prime_inference.kv.capacity import CHUNK_TOKENS, GLM_5_3_FP8, break_even_bytes_per_s
from prime_inference.kv.gate.decision import Choice, Decision, Policy, Reason, Segment, decide

S = GLM_5_3_FP8.bytes_per_token
R = 53_000.0
BREAK_EVEN = break_even_bytes_per_s(S, R)
PROMPT = 16_384


def decided(
    hit: int, times_break_even: float, queue_s: float = 0.0, fixed_s: float = 0.0, in_flight: int = 0, **policy: float
) -> Decision:
    segment = Segment(hit, times_break_even * BREAK_EVEN, fixed_s, in_flight)
    return decide(PROMPT, [segment], S, R, queue_s, Policy(**policy))  # type: ignore[arg-type]


def test_well_above_break_even_the_whole_hit_is_taken() -> None:
    decision = decided(PROMPT - CHUNK_TOKENS, 4.0)
    assert (decision.choice, decision.reason) == (Choice.TAKE_ALL, Reason.FASTER)
    assert decision.tokens == PROMPT - CHUNK_TOKENS
    assert decision.load_s == pytest.approx(decision.tokens / R / 4.0)


def test_below_break_even_with_an_idle_engine_nothing_is_taken() -> None:
    decision = decided(PROMPT, 0.35)
    assert (decision.choice, decision.reason, decision.tokens) == (Choice.RECOMPUTE, Reason.SLOWER, 0)


def test_a_slow_tier_gives_the_part_that_the_queue_hides() -> None:
    queue_s = 0.196
    decision = decided(PROMPT, 0.5, queue_s=queue_s)
    assert (decision.choice, decision.reason) == (Choice.TAKE_PART, Reason.HIDDEN)
    assert decision.load_s <= queue_s
    one_more_s = (decision.tokens + CHUNK_TOKENS) * S / (0.5 * BREAK_EVEN)
    assert one_more_s - queue_s > CHUNK_TOKENS / R


def test_a_chunk_that_outlasts_the_queue_by_less_than_its_computing_is_taken_too() -> None:
    decision = decided(PROMPT, 0.5, queue_s=0.2)
    assert (decision.choice, decision.reason) == (Choice.TAKE_PART, Reason.FASTER)
    assert 0.0 < decision.load_s - 0.2 < CHUNK_TOKENS / R


def test_a_short_hit_is_not_worth_its_fixed_cost() -> None:
    assert decided(CHUNK_TOKENS, 4.0, fixed_s=0.1).reason is Reason.TOO_SHORT


def test_a_gain_within_the_error_of_the_estimates_is_left() -> None:
    assert decided(PROMPT, 1.05).reason is Reason.WITHIN_MARGIN


def test_a_load_longer_than_the_longest_deadline_is_shortened_to_it() -> None:
    decision = decided(PROMPT, 2.0, longest_deadline_s=0.05)
    assert decision.choice is Choice.TAKE_PART
    assert decision.load_s <= 0.05
    assert decision.deadline_s <= 0.05


def test_a_tier_that_cannot_load_a_chunk_in_the_longest_deadline_is_left() -> None:
    assert decided(PROMPT, 0.0001).reason is Reason.OVER_DEADLINE


def test_a_busy_tier_is_left() -> None:
    assert decided(PROMPT, 10.0, in_flight=32).reason is Reason.TIER_BUSY


def test_nothing_beyond_the_engines_own_cache_is_no_hit() -> None:
    assert decided(0, 10.0).reason is Reason.NO_HIT
    assert decide(200, [Segment(CHUNK_TOKENS, 1e12, 0.0)], S, R, 0.0, Policy()).reason is Reason.NO_HIT


def test_a_fast_tier_before_a_slow_one_gives_its_own_part() -> None:
    fast, slow = Segment(4_096, 10 * BREAK_EVEN, 0.0), Segment(8_192, 0.2 * BREAK_EVEN, 0.0)
    decision = decide(PROMPT, [fast, slow], S, R, 0.0, Policy())
    assert (decision.choice, decision.tokens) == (Choice.TAKE_PART, 4_096)


def test_a_long_silence_is_ended_by_a_probe_of_one_chunk_that_costs_next_to_nothing() -> None:
    segment = Segment(PROMPT, 0.1 * BREAK_EVEN, 0.0, idle_s=10.0)
    decision = decide(PROMPT, [segment], S, R, 0.0, Policy())
    assert (decision.reason, decision.tokens) == (Reason.PROBE, CHUNK_TOKENS)
    assert decision.deadline_s == pytest.approx(0.03 * PROMPT / R)
    busy = Segment(PROMPT, 0.1 * BREAK_EVEN, 0.0, in_flight=1, idle_s=10.0)
    assert decide(PROMPT, [busy], S, R, 0.0, Policy()).choice is Choice.RECOMPUTE


SEGMENTS = st.lists(
    st.builds(
        Segment,
        tokens=st.integers(1, 64).map(lambda chunks: chunks * CHUNK_TOKENS),
        bytes_per_s=st.floats(0.01, 20.0).map(lambda times: times * BREAK_EVEN),
        fixed_s=st.floats(0.0, 0.1),
    ),
    min_size=1,
    max_size=3,
)


def ttft_by_definition(tokens: int, new_tokens: int, segments: list[Segment], queue_s: float) -> float:
    left, load_s = tokens, 0.0
    for segment in segments:
        part = min(left, segment.tokens)
        load_s += segment.fixed_s * (part > 0) + part * S / segment.bytes_per_s
        left -= part
    return max(queue_s, load_s) + (new_tokens - tokens) / R


@given(SEGMENTS, st.integers(1, 30_000), st.floats(0.0, 2.0))
@example([Segment(256, 2_565_624_000.0, 0.09375), Segment(11_008, 1_282_812_000.0, 0.0)], 11_264, 0.5)
@settings(deadline=None)
def test_no_number_of_chunks_would_have_been_estimated_better(
    segments: list[Segment], new_tokens: int, queue_s: float
) -> None:
    """Every length by brute force against the few corners that are looked at."""
    decision = decide(new_tokens, segments, S, R, queue_s, Policy(margin=0.0, longest_deadline_s=math.inf))
    hit = min(sum(segment.tokens for segment in segments), new_tokens // CHUNK_TOKENS * CHUNK_TOKENS)
    every = [ttft_by_definition(n, new_tokens, segments, queue_s) for n in range(0, hit + 1, CHUNK_TOKENS)]
    taken = ttft_by_definition(decision.tokens, new_tokens, segments, queue_s)
    assert taken == pytest.approx(min(every), rel=1e-9)


@given(SEGMENTS, st.integers(1, 30_000), st.floats(0.0, 2.0))
def test_a_decision_keeps_its_promises(segments: list[Segment], new_tokens: int, queue_s: float) -> None:
    policy = Policy()
    decision = decide(new_tokens, segments, S, R, queue_s, policy)
    hit = sum(segment.tokens for segment in segments)
    assert 0 <= decision.tokens <= min(hit, new_tokens)
    assert decision.tokens % CHUNK_TOKENS == 0
    assert (decision.tokens == 0) == (decision.choice is Choice.RECOMPUTE)
    if decision.tokens:
        assert ttft_by_definition(decision.tokens, new_tokens, segments, queue_s) < decision.recompute_s
        # Given up at the deadline with nothing loaded, the hit is computed a second time at the very most.
        assert decision.deadline_s <= min(policy.longest_deadline_s, queue_s + decision.tokens / R) + 1e-12
