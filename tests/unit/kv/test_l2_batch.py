from hypothesis import given
from hypothesis import strategies as st

from prime_inference.kv.l2.batch import Batch
from prime_inference.kv.l2.outcomes import KeyOutcome, Operation


def batch_of(keys: int, completed: list[Batch]) -> Batch:
    return Batch(1, Operation.LOAD, [b"k"] * keys, deadline=0.0, on_complete=completed.append)


ACTIONS = st.lists(st.tuples(st.sampled_from(["claim", "release", "settle", "expire"]), st.integers(0, 3)), max_size=40)


@given(ACTIONS)
def test_a_key_is_settled_once_a_claimed_key_never_expires_and_completion_comes_once(
    actions: list[tuple[str, int]],
) -> None:
    completed: list[Batch] = []
    batch = batch_of(4, completed)
    state = ["waiting"] * 4
    settled_as: dict[int, KeyOutcome] = {}
    for action, index in actions:
        if action == "claim":
            assert batch.claim(index) == (state[index] == "waiting")
            if state[index] == "waiting":
                state[index] = "claimed"
        elif action == "release":
            batch.release(index)
            if state[index] == "claimed":
                state[index] = "waiting"
        elif action == "settle":
            assert batch.settle(index, KeyOutcome.OK) == (state[index] != "settled")
            if state[index] != "settled":
                state[index], settled_as[index] = "settled", KeyOutcome.OK
        else:
            expected = [number for number in range(4) if state[number] == "waiting"]
            assert batch.settle_waiting(KeyOutcome.DEADLINE) == expected
            for number in expected:
                state[number], settled_as[number] = "settled", KeyOutcome.DEADLINE
        assert [batch.is_settled(number) for number in range(4)] == [each == "settled" for each in state]
        assert len(completed) == (1 if state.count("settled") == 4 else 0)
        assert batch.wait(0) == bool(completed)
    for index, outcome in settled_as.items():
        assert batch.outcomes[index] is outcome


def test_an_unsettled_key_never_reads_as_a_success() -> None:
    assert batch_of(2, []).succeeded == [False, False]


EACH = st.lists(st.tuples(st.sampled_from(["claim", "settle", "expire"]), st.sets(st.integers(0, 5))), max_size=12)


@given(EACH)
def test_several_keys_in_one_turn_of_the_lock_end_as_one_after_the_other(actions: list[tuple[str, set[int]]]) -> None:
    completed: list[Batch] = []
    together, apart = batch_of(6, completed), batch_of(6, [])
    for action, chosen in actions:
        indices = sorted(chosen)
        if action == "claim":
            assert together.claim_each(indices) == [index for index in indices if apart.claim(index)]
        elif action == "settle":
            outcome = KeyOutcome.OK if len(indices) % 2 else KeyOutcome.ABSENT
            assert together.settle_alike(indices, outcome) == sum([apart.settle(index, outcome) for index in indices])
        else:
            assert together.settle_waiting(KeyOutcome.DEADLINE) == apart.settle_waiting(KeyOutcome.DEADLINE)
        assert together.outcomes == apart.outcomes
        assert together.unsettled(range(6)) == [index for index in range(6) if not apart.is_settled(index)]
        assert together.wait(0) == apart.wait(0) == (len(completed) == 1)
