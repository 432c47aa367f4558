import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.kv.capacity import CHUNK_TOKENS
from prime_inference.kv.gate.decision import Policy, Reason
from prime_inference.kv.gate.estimates import PrefillEstimate, TierEstimate
from prime_inference.kv.gate.gate import LoadGate
from prime_inference.kv.gate.plans import LoadEnd, LoadPlans, Step

S = 48_408
R = 53_000.0
PROMPT = 16_385


def plans(times_break_even: float = 4.0) -> LoadPlans:
    tier = TierEstimate(times_break_even * S * R, fixed_s=0.0, now=0.0)
    return LoadPlans(LoadGate(S, {"t": tier}, PrefillEstimate(R), Policy()), "t")


def test_what_the_engine_has_itself_is_never_looked_up() -> None:
    those = plans()
    assert those.ask("r", PROMPT, 16_384, 0, now=0.0).step is Step.COMPUTE
    assert those.gate.decisions.most_common()[0][0][1] is Reason.NO_HIT
    assert those.gate.tiers["t"].in_flight == 0


def test_a_prompt_that_is_computed_sooner_is_not_looked_up_and_the_answer_stands() -> None:
    those = plans(0.3)
    assert [those.ask("r", PROMPT, 0, 0, now=t).step for t in (0.0, 0.1)] == [Step.COMPUTE, Step.COMPUTE]
    assert sum(those.gate.decisions.values()) == 1


def test_a_hit_is_looked_up_waited_for_loaded_and_measured() -> None:
    those = plans()
    ask = those.ask("r", PROMPT, 0, 0, now=0.0)
    assert (ask.step, ask.end_tokens) == (Step.LOOK_UP, 16_384)
    assert those.ask("r", PROMPT, 0, 0, now=0.01).step is Step.WAIT
    those.found("r", 16_384, now=0.02)
    assert those.ask("r", PROMPT, 0, 0, now=9.0).step is Step.WAIT  # found: only blocks of the engine are missing
    those.finished("r", whole=True, now=16_384 / R / 2)
    assert those.ends == {LoadEnd.LOADED: 1}
    assert those.gate.tiers["t"].bytes_per_s == pytest.approx(3.0 * S * R)  # half of what was thought, at weight 1/2


def test_a_lookup_without_an_answer_is_given_up_at_its_deadline_and_lowers_the_estimate() -> None:
    those = plans()
    those.ask("r", PROMPT, 0, 0, now=0.0)
    deadline = 1.35 * 16_384 / R / 4
    assert those.ask("r", PROMPT, 0, 0, now=deadline - 0.001).step is Step.WAIT
    assert those.ask("r", PROMPT, 0, 0, now=deadline + 0.001).step is Step.GIVE_UP
    assert those.ask("r", PROMPT, 0, 0, now=deadline + 0.002).step is Step.COMPUTE
    assert those.ends == {LoadEnd.LATE: 1}
    assert those.gate.tiers["t"].bytes_per_s < 4 * S * R
    those.found("r", 4_096, now=1.0)  # too late: nothing changes
    assert those.ask("r", PROMPT, 0, 0, now=1.0).step is Step.COMPUTE


def test_a_miss_is_computed_and_says_nothing_about_bandwidth() -> None:
    those = plans()
    those.ask("r", PROMPT, 0, 0, now=0.0)
    those.found("r", 0, now=0.05)
    assert those.ask("r", PROMPT, 0, 0, now=0.05).step is Step.COMPUTE
    assert those.gate.tiers["t"].bytes_per_s == 4.0 * S * R
    assert those.ends == {LoadEnd.MISS: 1}


def test_a_store_that_is_too_slow_for_its_clients_patience_is_learnt_though_it_looks_like_a_miss() -> None:
    """On the real parts the L2 client gave up after 2 s, just before the gate would have: prompt after prompt waited for it."""
    those = plans()
    computing_s = 16_384 / R
    those.ask("r", PROMPT, 0, 0, now=0.0)
    load_s = computing_s / 4
    assert those.ask("r", PROMPT, 0, 0, now=1.2 * load_s).step is Step.WAIT
    those.found("r", 0, now=9.0, answered_at=1.2 * load_s)
    assert those.ends == {LoadEnd.MISS: 1}
    assert those.gate.tiers["t"].bytes_per_s == pytest.approx(4 * S * R / 1.2)


def test_a_probe_whose_answer_comes_too_late_for_its_prompt_finds_out_that_the_tier_is_fast_again() -> None:
    those = plans(0.5)
    ask = those.ask("r", PROMPT, 0, 0, now=20.0)
    assert (ask.step, ask.end_tokens) == (Step.LOOK_UP, CHUNK_TOKENS)
    deadline = 0.03 * PROMPT / R
    assert those.ask("r", PROMPT, 0, 0, now=20.0 + 1.01 * deadline).step is Step.GIVE_UP
    assert those.gate.tiers["t"].bytes_per_s == 0.5 * S * R
    those.answered("r", CHUNK_TOKENS, at=20.0 + 2 * CHUNK_TOKENS / R)  # seen only after the prompt was computed
    slow = those.gate.tiers["t"].bytes_per_s
    assert slow == pytest.approx(0.5 * S * R)
    those.forget("r", 21.0)
    those.ask("s", PROMPT, 0, 0, now=40.0)
    those.ask("s", PROMPT, 0, 0, now=40.0 + 1.01 * deadline)
    those.admitted("s", 40.02)
    those.answered("s", CHUNK_TOKENS, at=40.0 + CHUNK_TOKENS / R / 8)
    assert those.gate.tiers["t"].bytes_per_s > 1.5 * S * R
    those.answered("s", CHUNK_TOKENS, at=40.1)  # counted once
    those.forget("s", 41.0)
    assert those.ask("next", PROMPT, 0, 0, now=41.0).step is Step.LOOK_UP
    assert those.gate.tiers["t"].in_flight == 1


def test_a_part_is_taken_by_asking_for_a_shorter_prompt_after_the_engines_own_tokens() -> None:
    those = plans(0.5)
    ask = those.ask("r", PROMPT, 300, int(0.2 * R), now=0.0)
    assert ask.step is Step.LOOK_UP
    assert ask.end_tokens % CHUNK_TOKENS == 0
    assert CHUNK_TOKENS < ask.end_tokens < 16_384


@given(st.integers(0, 2**32), st.integers(1, 60))
def test_whatever_comes_in_whatever_order_no_load_is_left_in_flight(seed: int, events: int) -> None:
    draw = random.Random(seed)
    those = plans(draw.choice([0.3, 1.5, 8.0]))
    now = 0.0
    requests = [f"r{number}" for number in range(4)]
    for _ in range(events):
        now += draw.expovariate(20.0)
        request = draw.choice(requests)
        match draw.randrange(7):
            case 0 | 1:
                those.ask(request, draw.randrange(1, 20_000), draw.randrange(0, 20_000), draw.randrange(0, 9_000), now)
            case 2:
                those.found(request, draw.choice([0, 256, 4_096]), now, draw.choice([None, now, now - 0.01]))
            case 3:
                those.finished(request, draw.random() < 0.8, now)
            case 4:
                those.admitted(request, now)
            case 5:
                those.answered(request, draw.choice([0, 256, 4_096]), now)
            case _:
                those.forget(request, now)
        assert 0 <= those.gate.tiers["t"].in_flight <= len(requests)
        assert those.gate.tiers["t"].bytes_per_s > 0
    for request in requests:
        those.forget(request, now)
    assert those.gate.tiers["t"].in_flight == 0
