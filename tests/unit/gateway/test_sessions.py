from hypothesis import given
from hypothesis import strategies as st

from gateway.metering.usage import Usage
from gateway.relay.sessions import BYTES_A_TOKEN, Sessions


def test_a_new_session_counts_all_of_its_prompt() -> None:
    sessions = Sessions()
    tokens = sessions.prompt_tokens("s", 4000)
    assert tokens == 4000 // BYTES_A_TOKEN
    assert sessions.uncached_tokens("s", "d", tokens) == tokens


def test_the_next_turn_counts_only_what_is_new_where_the_last_one_was() -> None:
    sessions = Sessions()
    sessions.answered("s", "here", 3000, Usage(1000, 50, 0, 0))
    tokens = sessions.prompt_tokens("s", 3300)
    assert tokens == 1100
    assert sessions.uncached_tokens("s", "here", tokens) == 50
    assert sessions.uncached_tokens("s", "elsewhere", tokens) == 1100


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 10**7), st.integers(0, 10**6)), max_size=30))
def test_an_estimate_is_never_below_one_and_the_table_never_above_its_size(turns: list[tuple[str, int, int]]) -> None:
    sessions = Sessions(most=3)
    for session, size, tokens in turns:
        estimate = sessions.prompt_tokens(session, size)
        assert 1 <= sessions.uncached_tokens(session, "d", estimate) <= estimate
        sessions.answered(session, "d", size, Usage(tokens, 10, 0, 0))
        assert len(sessions) <= 3
