from hypothesis import given
from hypothesis import strategies as st

from prime_inference.kv.sharding.agreement import (
    FINGERPRINT_BYTES,
    REPORT_BYTES,
    Agreement,
    LoadOutcome,
    RankReport,
    agree,
    fingerprint,
)

SAME = b"s" * FINGERPRINT_BYTES


@given(
    st.builds(
        RankReport,
        st.integers(0, 2**31 - 1),
        st.integers(0, 2**31 - 1),
        st.binary(min_size=FINGERPRINT_BYTES, max_size=FINGERPRINT_BYTES),
    )
)
def test_a_report_reads_back_and_has_one_size(report: RankReport) -> None:
    assert len(report.encode()) == REPORT_BYTES
    assert RankReport.decode(report.encode()) == report


def test_the_rank_that_reaches_least_ends_the_prefix_for_all() -> None:
    reports = [RankReport(0, 8, SAME), RankReport(1, 5, SAME), RankReport(2, 8, SAME)]
    assert agree(reports, 8) == Agreement(5, LoadOutcome.SHORTENED)


def test_all_chunks_there_is_loaded() -> None:
    assert agree([RankReport(rank, 8, SAME) for rank in range(3)], 8) == Agreement(8, LoadOutcome.LOADED)


def test_different_chunk_lists_load_nothing() -> None:
    other = RankReport(1, 8, b"o" * FINGERPRINT_BYTES)
    assert agree([RankReport(0, 8, SAME), other], 8) == Agreement(0, LoadOutcome.LISTS_DIFFER)


@given(st.lists(st.binary(max_size=8), max_size=5), st.lists(st.binary(max_size=8), max_size=5))
def test_the_fingerprint_tells_chunk_lists_apart_also_where_their_bytes_run_together(
    one: list[bytes], other: list[bytes]
) -> None:
    assert (fingerprint("r", 2, one) == fingerprint("r", 2, other)) == (one == other)


def test_the_fingerprint_tells_requests_and_worlds_apart() -> None:
    assert len({fingerprint("a", 2, []), fingerprint("b", 2, []), fingerprint("a", 3, [])}) == 3
