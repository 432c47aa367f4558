"""Our counters beside prometheus_client's own: what is scraped is the same text."""

from typing import Any

import prometheus_client as theirs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from gateway.telemetry import instruments as ours

BOUNDS = (0.005, 0.1, 1, 2.5, 250)


def scraped(kind: Any, values: list[float], label: str) -> str:
    registry = CollectorRegistry()
    counter = kind.Counter("a_requests", "Requests.", ["model", "outcome"], registry=registry)
    plain = kind.Counter("b_lost", "Lost.", registry=registry)
    gauge = kind.Gauge("c_held", "Held.", ["model"], registry=registry)
    flag = kind.Gauge("d_flag", "Flag.", registry=registry)
    histogram = kind.Histogram("e_seconds", "Seconds.", ["model"], buckets=BOUNDS, registry=registry)
    for value in values:
        counter.labels(label, "ok").inc()
        counter.labels(label, "bad").inc(value)
        plain.inc(value)
        gauge.labels(label).inc()
        gauge.labels(label).dec(value)
        flag.set(value > 1)
        histogram.labels(label).observe(value)
    lines = generate_latest(registry).decode().splitlines()
    # Theirs also tells when each child was made, in a family of its own.
    return "\n".join(line for line in lines if "_created" not in line)


@given(st.lists(st.floats(0, 1000, allow_nan=False) | st.sampled_from(BOUNDS), max_size=20), st.sampled_from('m/é"\n'))
def test_the_scrape_is_what_prometheus_client_would_say(values: list[float], label: str) -> None:
    assert scraped(ours, values, label) == scraped(theirs, values, label)


def test_a_wrong_number_of_labels_is_told_at_once() -> None:
    counter = ours.Counter("a", "A.", ["model"], registry=CollectorRegistry())
    with pytest.raises(ValueError, match="labels"):
        counter.labels("m", "ok")


def test_what_is_above_every_bound_counts_in_the_last_bucket() -> None:
    registry = CollectorRegistry()
    histogram = ours.Histogram("a_seconds", "A.", ["model"], buckets=BOUNDS, registry=registry)
    histogram.labels("m").observe(1e9)
    assert registry.get_sample_value("a_seconds_bucket", {"model": "m", "le": "250.0"}) == 0
    assert registry.get_sample_value("a_seconds_bucket", {"model": "m", "le": "+Inf"}) == 1
    assert registry.get_sample_value("a_seconds_sum", {"model": "m"}) == pytest.approx(1e9)


def test_the_registry_shows_a_selection_and_refuses_a_second_owner_of_a_name() -> None:
    registry = CollectorRegistry()
    ours.Counter("a_things", "Things.", ["model"], registry=registry).labels("m").inc()
    ours.Gauge("b_things", "Others.", registry=registry)
    selected = registry.restricted_registry(["a_things_total"])
    assert [sample.value for family in selected.collect() for sample in family.samples] == [1]
    with pytest.raises(ValueError, match="Duplicated"):
        ours.Gauge("b_things", "Again.", registry=registry)
