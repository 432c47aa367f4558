from hypothesis import given
from hypothesis import strategies as st

from prime_inference.kv.l2.outcomes import Operation
from prime_inference.kv.l2.settings import L2Settings
from prime_inference.kv.l2.timings import BUCKETS_S, BatchTimings


@given(st.lists(st.tuples(st.sampled_from(list(Operation)), st.floats(0.0, 10.0)), max_size=60))
def test_every_batch_is_in_its_bucket_and_in_all_above_and_the_slowest_is_kept(
    batches: list[tuple[Operation, float]],
) -> None:
    timings = BatchTimings()
    for operation, seconds in batches:
        timings.took(operation, seconds)
    for operation in Operation:
        took = [seconds for each, seconds in batches if each is operation]
        edges = [*BUCKETS_S, float("inf")]
        expected = [(str(edge).replace("inf", "+Inf"), sum(seconds <= edge for seconds in took)) for edge in edges]
        assert timings.cumulative(operation) == expected
        assert timings.slowest_s.get(operation) == max(took, default=None)


def test_each_default_deadline_is_an_edge_with_one_a_tenth_later() -> None:
    settings = L2Settings(shards=())
    for deadline in (settings.lookup_timeout_s, settings.load_timeout_s, settings.store_timeout_s):
        assert {deadline, round(1.1 * deadline, 2)} <= set(BUCKETS_S)
