"""Who waits, who goes first, who makes room."""

from gateway.admission.line import MOST_WAITING, Line, Priority, Waiter
from gateway.admission.outcomes import Outcome, limit_refusal, refusal
from gateway.admission.policy import NOTHING, Kind, Weight
from gateway.admission.store import StoreAsk
from gateway.ratelimit.core import NEVER_MS


def waiter(line: Line, priority: Priority = Priority.INTERACTIVE, deadline: float = 9.0) -> Waiter:
    made = Waiter(StoreAsk("t", Kind.INTERACTIVE, Weight(1, 1), NOTHING), priority, 0.0, deadline)
    line.join(made)
    return made


def test_better_priority_goes_first_and_then_who_came_first() -> None:
    line = Line()
    retry = waiter(line, Priority.RETRY)
    first, second = waiter(line), waiter(line)
    assert line.next_asks() == [first, second, retry]


def test_who_has_no_patience_is_asked_once() -> None:
    line = Line()
    hasty = waiter(line, deadline=0.0)
    assert line.has_new
    assert line.refused([hasty], now=0.0) == [(hasty, Outcome.NO_CAPACITY)]
    assert len(line) == 0


def test_who_has_patience_waits_until_his_deadline() -> None:
    line = Line()
    patient = waiter(line, deadline=1.0)
    assert line.refused([patient], now=0.5) == []
    assert not line.has_new
    assert line.refused([patient], now=1.0) == [(patient, Outcome.QUEUE_TIMEOUT)]


def test_a_full_line_turns_newcomers_away_but_for_better_priority() -> None:
    line = Line()
    waiting = [waiter(line, Priority.ROUTED) for _ in range(MOST_WAITING)]
    assert line.refused(waiting, now=0.0) == []
    late = waiter(line, Priority.ROUTED)
    assert line.refused([late], now=0.0) == [(late, Outcome.QUEUE_FULL)]
    better = waiter(line)
    assert line.refused([better], now=0.0) == [(waiting[-1], Outcome.DISPLACED)]
    assert line.next_asks()[0] is better


def test_a_refusal_tells_when_to_come_back_and_whether_it_is_worth_it() -> None:
    assert refusal(Outcome.NO_CAPACITY, batch=False, draw=0.0).headers() == {
        "x-should-retry": "true",
        "retry-after": "1",
    }
    assert refusal(Outcome.NO_CAPACITY, batch=True, draw=0.5).headers()["x-should-retry"] == "false"
    assert limit_refusal(Outcome.REQUEST_LIMIT, 300).headers() == {"x-should-retry": "true", "retry-after": "1"}
    assert limit_refusal(Outcome.TOKEN_LIMIT, 50_000).headers() == {"x-should-retry": "false", "retry-after": "50"}
    assert limit_refusal(Outcome.OVER_TOKEN_LIMIT, NEVER_MS).headers() == {"x-should-retry": "false"}
    assert refusal(Outcome.NO_CAPACITY, batch=False, draw=0.5).status == 429
