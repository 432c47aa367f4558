"""Counters, gauges and histograms for one event loop: a lookup and an addition at the request, everything else at the scrape.

prometheus_client's own take a lock, check each label and build a key of strings on every call: 11 us a count, and a
request makes a dozen. These are called as those are (`labels(...).inc()`), and the same registry reads them, so what is
scraped is the same text. A child is kept for good once its labels were met: label sets are closed.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Number:
    """One counter's or gauge's value under one set of labels."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def inc(self, amount: float = 1) -> None:
        self.value += amount

    def dec(self, amount: float = 1) -> None:
        self.value -= amount

    def set(self, value: float) -> None:
        self.value = value


class Buckets:
    """One histogram under one set of labels. `counts` holds one more than the bounds: what is above the last."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class _Numbers(Collector):
    """Without label names there is one child from the start, under no labels: a metric that never moved is 0, not absent."""

    def __init__(self, name: str, meaning: str, labels: Sequence[str] = (), *, registry: CollectorRegistry) -> None:
        self._name = name
        self._meaning = meaning
        self._labels = tuple(labels)
        self._children: dict[tuple[str, ...], Number] = {} if labels else {(): Number()}
        registry.register(self)

    def labels(self, *values: str) -> Number:
        child = self._children.get(values)
        return self._new(values) if child is None else child

    def _new(self, values: tuple[str, ...]) -> Number:
        _check(self._name, self._labels, values)
        child = self._children[values] = Number()
        return child

    def describe(self) -> Iterable[Metric]:
        """So that the registry knows whose names these are: it refuses a second owner and can show a selection."""
        return self.collect()

    def _filled(self, family: Any) -> Iterator[Metric]:
        for values, child in self._children.items():
            family.add_metric(values, child.value)
        yield family


class Counter(_Numbers):
    def inc(self, amount: float = 1) -> None:
        """Of a counter without labels."""
        self._children[()].value += amount

    def collect(self) -> Iterator[Metric]:
        return self._filled(CounterMetricFamily(self._name, self._meaning, labels=self._labels))


class Gauge(_Numbers):
    def set(self, value: float) -> None:
        """Of a gauge without labels."""
        self._children[()].value = float(value)

    def collect(self) -> Iterator[Metric]:
        return self._filled(GaugeMetricFamily(self._name, self._meaning, labels=self._labels))


class Histogram(Collector):
    """`buckets` are upper bounds, ascending, without the last, which has none."""

    def __init__(
        self, name: str, meaning: str, labels: Sequence[str], *, buckets: Sequence[float], registry: CollectorRegistry
    ) -> None:
        self._name = name
        self._meaning = meaning
        self._labels = tuple(labels)
        self._bounds = tuple(buckets)
        self._children: dict[tuple[str, ...], Buckets] = {}
        registry.register(self)

    def labels(self, *values: str) -> Buckets:
        child = self._children.get(values)
        if child is None:
            _check(self._name, self._labels, values)
            child = self._children[values] = Buckets(self._bounds)
        return child

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._meaning, labels=self._labels)
        names = [floatToGoString(bound) for bound in (*self._bounds, float("inf"))]  # type: ignore[no-untyped-call]
        for values, child in self._children.items():
            family.add_metric(values, list(zip(names, accumulate(child.counts), strict=True)), child.total)
        yield family


def _check(name: str, labels: tuple[str, ...], values: tuple[str, ...]) -> None:
    """A wrong number of labels is a bug that the first call shows."""
    if len(values) != len(labels):
        raise ValueError(f"{name} has the labels {labels}, not {values}")
