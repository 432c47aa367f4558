"""Rates and quantiles of the last minute."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from gateway.admin.frontends import values_in
from gateway.admin.window import Values, Window, quantile


def requests(**by_outcome: float) -> Values:
    return {("n_total", (("outcome", name),)): value for name, value in by_outcome.items()}


def test_increase_and_rate_are_of_the_window_and_sum_over_labels() -> None:
    window = Window(60)
    for at in range(0, 200, 10):
        window.add(at, requests(ok=float(at), bad=float(2 * at)))
    assert window.seconds == 60
    assert window.increase("n_total") == 180
    assert window.increase("n_total", outcome="bad") == 120
    assert window.rate("n_total", outcome="ok") == 1


def test_one_sample_tells_all_since_the_start_and_no_rate() -> None:
    window = Window()
    assert (window.increase("n_total"), window.rate("n_total")) == (0, None)
    window.add(5, requests(ok=7))
    assert (window.increase("n_total"), window.rate("n_total")) == (7, None)
    window.add(6, requests(ok=9, new=1))
    assert window.increase("n_total") == 3


def test_a_process_that_began_again_counts_from_zero() -> None:
    window = Window()
    window.add(0, requests(ok=100))
    window.add(1, requests(ok=3))
    assert window.increase("n_total") == 3


@given(st.lists(st.floats(0, 20, allow_nan=False), min_size=1, max_size=200), st.floats(0.01, 1))
@example([3.0, 0.05, 0.05, 0.05], 0.75)
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], q: float) -> None:
    bounds = [0.1, 0.5, 1.0, 5.0, 10.0]
    buckets = [(bound, float(sum(value <= bound for value in values))) for bound in [*bounds, float("inf")]]
    found = quantile(buckets, q)
    assert found is not None
    rank = q * len(values)
    above = next(bound for bound, count in buckets if count >= rank)
    below = max((bound for bound in bounds if bound < above), default=0.0)
    assert below <= found <= (above if above != float("inf") else bounds[-1])


@pytest.mark.parametrize("buckets", [[], [(1.0, 0.0), (float("inf"), 0.0)]])
def test_without_an_observation_there_is_no_quantile(buckets: list[tuple[float, float]]) -> None:
    assert quantile(buckets, 0.5) is None


def test_a_frontends_page_is_read_into_the_window() -> None:
    registry = CollectorRegistry()
    ttft = Histogram("dynamo_frontend_time_to_first_token_seconds", "t", ["model"], registry=registry)
    window = Window()
    window.add(0, values_in(generate_latest(registry).decode()))
    for _ in range(10):
        ttft.labels("glm-5.3").observe(0.3)
    values = values_in(generate_latest(registry).decode() + "other_metric 5\nbroken line\n")
    assert all(name.startswith("dynamo_frontend_") for name, _ in values)
    window.add(1, values)
    found = window.quantile("dynamo_frontend_time_to_first_token_seconds", 0.5, model="glm-5.3")
    assert found is not None
    assert 0.25 <= found <= 0.5
