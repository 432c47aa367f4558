"""What a process holds, and when its headroom counts."""

from gateway.admission.ledger import Grant, Ledger, most_headroom
from gateway.admission.policy import NOTHING, Weight

ONE = Weight(1, 100)
PLENTY = Weight(50, 50_000)


FOUR = Weight(4, 400)


def ledger(headroom: Weight = FOUR) -> tuple[Ledger, Grant]:
    book = Ledger(certain_until=10.0)
    return book, book.granted("d", "t", ONE, headroom)


def test_headroom_serves_while_the_lease_is_certain_and_not_a_moment_longer() -> None:
    book, _ = ledger()
    assert book.take("d", "t", ONE, now=9.9) is not None
    assert book.take("d", "t", ONE, now=10.0) is None
    assert book.take("d", "another", ONE, now=0.0) is None


def test_taking_from_headroom_leaves_what_is_held_as_it_was() -> None:
    book, _ = ledger()
    before = book.gauges("d")
    book.take("d", "t", ONE, now=0.0)
    assert book.gauges("d") == before == {"t": Weight(5, 500)}


def test_a_lost_lease_voids_headroom_but_not_what_is_in_use() -> None:
    book, _ = ledger()
    book.void_headroom()
    assert book.gauges("d") == {"t": ONE}
    assert book.take("d", "t", ONE, now=0.0) is None


def test_a_release_counts_once_and_becomes_headroom() -> None:
    book, grant = ledger(NOTHING)
    assert book.release(grant, now=0.0)
    assert not book.release(grant, now=0.0)
    assert book.in_use("d") == {"t": NOTHING}
    assert book.gauges("d") == {"t": ONE}


def test_headroom_beyond_the_recent_peak_and_a_quarter_goes_back() -> None:
    book, grant = ledger(Weight(30, 3_000))
    assert book.trim("d", PLENTY)
    assert book.gauges("d") == {"t": Weight(2, 125)}
    assert not book.trim("d", PLENTY), "told once"
    book.release(grant, 0.0)
    for _ in range(2):
        book.start_beat()
        book.trim("d", PLENTY)
    assert book.gauges("d") == {}, "two heartbeats without a request: nothing is held"


def test_no_headroom_is_kept_where_capacity_is_scarce() -> None:
    book, _ = ledger()
    assert book.trim("d", NOTHING)
    assert book.gauges("d") == {"t": ONE}


def test_a_client_that_left_during_prefill_keeps_its_tokens_for_the_rest_of_it() -> None:
    book, grant = ledger(NOTHING)
    book.release(grant, now=1.0, prefill_left_s=3.0)
    book.trim("d", NOTHING)
    assert book.gauges("d") == {"t": Weight(0, 100)}
    book.expire(3.9)
    assert book.gauges("d") == {"t": Weight(0, 100)}
    book.expire(4.0)
    assert book.gauges("d") == {}


def test_a_correction_downwards_frees_and_one_upwards_uses_headroom_first() -> None:
    book, grant = ledger(Weight(1, 100))
    assert not book.correct(grant, 40)
    assert book.gauges("d") == {"t": Weight(2, 200)}
    assert not book.correct(grant, 150)
    assert book.gauges("d") == {"t": Weight(2, 200)}
    assert book.correct(grant, 500), "more than is held: must be told"
    assert book.gauges("d") == {"t": Weight(2, 500)}
    book.release(grant, 0.0)
    assert not book.correct(grant, 9_000), "released: nothing to correct"


def test_what_is_asked_for_beside_a_request_is_a_quarter_of_the_peak_within_bounds() -> None:
    book = Ledger(certain_until=10.0)
    assert book.wanted_headroom("d", "t", ONE, PLENTY) == Weight(1, 25)
    grants = [book.granted("d", "t", ONE) for _ in range(20)]
    assert book.wanted_headroom("d", "t", ONE, PLENTY) == Weight(5, 525)
    assert book.wanted_headroom("d", "t", ONE, Weight(3, 50_000)) == Weight(3, 525)
    for grant in grants[:10]:
        book.release(grant, 0.0)
    assert book.wanted_headroom("d", "t", ONE, PLENTY) == Weight(4, 400), "ten are headroom already"


def test_all_replicas_headroom_together_is_at_most_a_quarter() -> None:
    assert most_headroom(Weight(100, 1_000), 5) == Weight(5, 50)
    assert most_headroom(Weight(10, 1_000), 5) == Weight(0, 50)
