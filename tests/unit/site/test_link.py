"""The breaker of the way to Valkey."""

from gateway.site import Link, LinkState, TripBudget
from gateway.site.link import JITTER, LONGEST_RETRY_S


def test_one_lost_trip_is_nothing_and_two_in_a_row_drop_the_link() -> None:
    link = Link()
    link.failed(0.0, 0.5)
    link.succeeded()
    link.failed(0.0, 0.5)
    assert link.is_up
    link.failed(0.0, 0.5)
    assert link.state is LinkState.DOWN


def test_probes_come_at_growing_intervals_up_to_a_bound_and_a_success_resets_them() -> None:
    link = Link()
    waits = []
    for _ in range(8):
        link.failed(0.0, 0.5)
        waits.append(link.probe_due_in_s(0.0))
    assert waits[0] == 0.0
    assert waits[1:] == sorted(waits[1:])
    assert waits[1:3] == [0.1, 0.2]
    assert waits[-1] == LONGEST_RETRY_S
    link.succeeded()
    assert (link.is_up, link.generation, link.drops) == (True, 1, 1)
    for _ in range(2):
        link.failed(0.0, 1.0)
    assert link.probe_due_in_s(0.0) == 0.1 * (1 + JITTER)


def test_a_request_has_one_budget_for_all_its_trips() -> None:
    budget = TripBudget(now=10.0, budget_s=0.1)
    assert round(budget.remaining_s(10.04), 3) == 0.06
    assert budget.remaining_s(11.0) == 0.0
