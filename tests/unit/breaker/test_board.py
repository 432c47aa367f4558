"""What a replica's copy permits."""

from gateway.breaker.board import PANIC_EVERY_S, Board, Source, Verdict
from gateway.breaker.core import BreakerSettings, Report, Snapshot, State
from gateway.breaker.endings import COUNTED, Ending, ending_of_status

OPEN = Snapshot(State.OPEN, epoch=1, opens=1, open_for_ms=5_000)
CLOSED_JUST_NOW = Snapshot(State.CLOSED, epoch=3, opens=1)


def board(**snapshots: Snapshot) -> Board:
    board = Board(BreakerSettings())
    for name, snapshot in snapshots.items():
        board.update(name, snapshot, now=100.0)
    return board


def test_a_closed_breaker_permits_and_an_open_one_does_not() -> None:
    desk = board(a=OPEN)
    assert desk.permit("b", ["a", "b"], 100.0, 0.5).verdict is Verdict.CLOSED
    assert desk.permit("a", ["a", "b"], 100.0, 0.0).verdict is Verdict.OPEN


def test_the_last_deployment_keeps_a_trickle_when_open() -> None:
    desk = board(a=OPEN, b=OPEN)
    verdicts = [desk.permit("a", ["a", "b"], 100.0 + i / 1000, i / 1000).verdict for i in range(1000)]
    assert verdicts.count(Verdict.PANIC) == 100, "a tenth; the first would have passed in any case"
    assert verdicts.count(Verdict.OPEN) == 900


def test_the_trickle_lets_one_through_each_second_at_low_traffic() -> None:
    desk = board(a=OPEN)
    verdicts = [desk.permit("a", ["a"], 100.0 + i * PANIC_EVERY_S, 0.99).verdict for i in range(5)]
    assert verdicts == [Verdict.PANIC] * 5


def test_a_breaker_that_just_closed_takes_a_tenth_then_half_then_all() -> None:
    desk = board(a=CLOSED_JUST_NOW)
    allowed = [
        sum(desk.permit("a", ["a", "b"], now, draw / 100).allowed for draw in range(100))
        for now in (100.0, 102.0, 104.0)
    ]
    assert allowed == [10, 50, 100]


def test_a_ramp_holds_nothing_back_that_no_other_deployment_would_take() -> None:
    desk = board(a=CLOSED_JUST_NOW, b=OPEN)
    for peers in (["a"], ["a", "b"]):
        assert all(desk.permit("a", peers, 100.0, draw / 100).verdict is Verdict.RAMP for draw in range(100))


def test_a_permit_is_reported_exactly_once() -> None:
    desk = board()
    permit = desk.permit("a", ["a"], 100.0, 0.5)
    assert desk.report(permit, Ending.CONNECT_FAILED)
    assert not desk.report(permit, Ending.CONNECT_FAILED)
    desk.report(permit, Ending.SUCCEEDED)
    assert desk.take_reports() == [Report("a", 0, succeeded=0, failed=1, trailing=1)]
    assert desk.take_reports() == []


def test_reports_are_batched_by_epoch_and_keep_the_order_of_failures_and_successes() -> None:
    desk = board()
    for ending in (Ending.CONNECT_FAILED, Ending.SUCCEEDED, Ending.TRUNCATED_STREAM, Ending.EMPTY_RESPONSE):
        desk.report(desk.permit("a", ["a"], 100.0, 0.5), ending)
    old = desk.permit("a", ["a"], 100.0, 0.5)
    desk.update("a", CLOSED_JUST_NOW, 100.0)
    desk.report(old, Ending.SUCCEEDED)
    desk.report(desk.permit("a", ["a"], 105.0, 0.5), Ending.SUCCEEDED)
    assert desk.take_reports() == [
        Report("a", 0, succeeded=2, failed=3, trailing=0),
        Report("a", 3, succeeded=1, failed=0, trailing=0),
    ]


def test_a_busy_deployment_a_bad_request_and_a_gone_client_speak_neither_for_nor_against() -> None:
    desk = board()
    for ending in (Ending.BUSY, Ending.REQUEST_REJECTED, Ending.CLIENT_GONE, Ending.UPSTREAM_REFUSED_US):
        assert not desk.report(desk.permit("a", ["a"], 100.0, 0.5), ending)
    assert desk.take_reports() == []


def test_a_refused_permit_cannot_be_reported() -> None:
    desk = board(a=OPEN)
    assert not desk.report(desk.permit("a", ["a", "b"], 100.0, 0.5), Ending.CONNECT_FAILED)
    assert desk.take_reports() == []


def test_a_copy_never_takes_an_older_epoch() -> None:
    desk = board(a=CLOSED_JUST_NOW)
    assert not desk.update("a", OPEN, 101.0)
    assert desk.permit("a", ["a"], 110.0, 0.99).verdict is Verdict.CLOSED


def test_what_is_pending_when_the_store_goes_away_counts_locally() -> None:
    desk = board()
    desk.report(desk.permit("a", ["a"], 100.0, 0.5), Ending.CONNECT_FAILED)
    desk.turn_local()
    assert desk.take_reports() == [Report("a", 0, succeeded=0, failed=1, trailing=1)]


def test_what_was_counted_locally_is_void_when_the_store_is_back() -> None:
    desk = board()
    desk.turn_local()
    desk.report(desk.permit("a", ["a"], 100.0, 0.5), Ending.CONNECT_FAILED)
    desk.turn_shared()
    assert desk.source is Source.SHARED
    assert desk.take_reports() == []


def test_a_report_that_did_not_arrive_goes_before_what_came_since() -> None:
    desk = board()
    desk.put_back(Report("a", 0, succeeded=1, failed=3, trailing=2))
    desk.report(desk.permit("a", ["a"], 100.0, 0.5), Ending.CONNECT_FAILED)
    [lost] = desk.take_reports()
    assert lost == Report("a", 0, succeeded=1, failed=4, trailing=3)
    desk.report(desk.permit("a", ["a"], 100.0, 0.5), Ending.SUCCEEDED)
    desk.put_back(lost)
    assert desk.take_reports() == [Report("a", 0, succeeded=2, failed=4, trailing=0)]


def test_probes_are_due_when_the_cooldown_or_the_hold_of_a_probe_has_passed() -> None:
    desk = board(a=OPEN, b=Snapshot(State.HALF_OPEN, 2, 1, open_for_ms=1_000), c=CLOSED_JUST_NOW)
    assert desk.probes_due("abc", 100.5) == []
    assert desk.probes_due("abc", 101.0) == ["b"]
    assert desk.probes_due("abc", 105.0) == ["a", "b"]


def test_every_upstream_status_has_an_ending_and_only_illness_counts() -> None:
    counted = {status for status in range(200, 600) if ending_of_status(status) in COUNTED}
    assert counted == set(range(500, 600)) - {529}
    assert ending_of_status(401) is Ending.UPSTREAM_REFUSED_US
    assert ending_of_status(429) is Ending.REQUEST_REJECTED
    assert ending_of_status(200) is Ending.SUCCEEDED
