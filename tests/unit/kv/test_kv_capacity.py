"""Golden numbers of the cost model; the sources are quoted in docs/kv.md."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.kv.capacity import (
    GLM_5_3_FP8,
    GLM_5_3_NVFP4,
    backlog_seconds,
    break_even_bytes_per_s,
    load_seconds,
    mean_wait_seconds,
    recompute_seconds,
    shortest_paying_hit_tokens,
    utilisation,
)

PREFILL_TOKENS_PER_S = 53_000
ARRIVALS_PER_S = 450 / 374
PROMPT_TOKENS = 16_384


def test_a_token_of_glm_in_fp8_is_48408_bytes() -> None:
    assert GLM_5_3_FP8.bytes_per_token == 48_408


def test_a_token_of_glm_in_nvfp4_is_30712_bytes() -> None:
    assert GLM_5_3_NVFP4.bytes_per_token == 30_712


def test_a_chunk_of_glm_in_fp8_is_12_39_megabytes() -> None:
    assert GLM_5_3_FP8.chunk_bytes == 12_392_448
    assert round(GLM_5_3_FP8.chunk_bytes / 1e6, 2) == 12.39


def test_break_even_bandwidth_is_2_57_gigabytes_a_second() -> None:
    assert round(break_even_bytes_per_s(GLM_5_3_FP8.bytes_per_token, PREFILL_TOKENS_PER_S) / 1e9, 2) == 2.57


@pytest.mark.parametrize(("bytes_per_s", "rho"), [(0.9e9, 1.06), (10.76e9, 0.089)])
def test_one_store_runs_away_and_eight_do_not(bytes_per_s: float, rho: float) -> None:
    service_s = load_seconds(PROMPT_TOKENS, GLM_5_3_FP8.bytes_per_token, bytes_per_s)
    assert utilisation(ARRIVALS_PER_S, service_s) == pytest.approx(rho, abs=0.002)


def test_a_queue_without_steady_state_has_a_backlog_and_no_wait() -> None:
    service_s = load_seconds(PROMPT_TOKENS, GLM_5_3_FP8.bytes_per_token, 0.9e9)
    assert mean_wait_seconds(ARRIVALS_PER_S, service_s) == math.inf
    assert backlog_seconds(ARRIVALS_PER_S, service_s, horizon_s=374.0) == pytest.approx(22.5, abs=0.2)
    assert backlog_seconds(ARRIVALS_PER_S, 0.1, horizon_s=374.0) == 0.0


def test_spread_of_service_times_lengthens_the_wait() -> None:
    # M/M/1 (second moment 2 T^2) waits twice as long as M/D/1.
    assert mean_wait_seconds(1.0, 0.5, 2 * 0.25) == pytest.approx(2 * mean_wait_seconds(1.0, 0.5))
    assert mean_wait_seconds(1.0, 0.5) == pytest.approx(0.25)


def test_a_tier_at_break_even_never_pays() -> None:
    s = GLM_5_3_FP8.bytes_per_token
    b = break_even_bytes_per_s(s, PREFILL_TOKENS_PER_S)
    assert shortest_paying_hit_tokens(s, b, PREFILL_TOKENS_PER_S, fixed_s=0.001) is None


def test_a_dead_tier_never_finishes_and_nothing_costs_nothing() -> None:
    assert load_seconds(1, 1, 0.0) == math.inf
    assert load_seconds(0, 1, 0.0, fixed_s=1.0) == 0.0
    assert recompute_seconds(0, 1.0) == 0.0


@given(
    bytes_per_token=st.integers(1, 100_000),
    tokens_per_s=st.floats(100, 1e6),
    times_break_even=st.floats(1.01, 50),
    fixed_s=st.floats(0.0001, 1.0),
)
def test_the_shortest_paying_hit_pays_and_half_of_it_does_not(
    bytes_per_token: int, tokens_per_s: float, times_break_even: float, fixed_s: float
) -> None:
    bytes_per_s = break_even_bytes_per_s(bytes_per_token, tokens_per_s) * times_break_even
    shortest = shortest_paying_hit_tokens(bytes_per_token, bytes_per_s, tokens_per_s, fixed_s)
    assert shortest is not None

    def gain_s(tokens: int) -> float:
        return recompute_seconds(tokens, tokens_per_s) - load_seconds(tokens, bytes_per_token, bytes_per_s, fixed_s)

    assert gain_s(shortest + 1) > 0
    assert gain_s(shortest // 2) <= 0
