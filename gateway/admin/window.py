"""Rates and quantiles of the last minute out of cumulative counters and histograms: pure."""

from collections import deque
from collections.abc import Iterable, Mapping

WINDOW_S = 60.0
"""Long enough for a quantile at low traffic, short enough to see what a button did."""

Labels = tuple[tuple[str, str], ...]
"""Sorted by name."""

Values = Mapping[tuple[str, Labels], float]
"""Cumulative values by metric sample name (`..._total`, `..._bucket`) and labels."""


class Window:
    """Samples as they come; with one alone, increases are since its process began. Between two of them a process may have
    restarted: a value that fell counts from zero."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, Values]] = deque()

    def add(self, at: float, values: Values) -> None:
        self._samples.append((at, values))
        # One older than the window stays: it is where the window begins.
        while len(self._samples) > 2 and self._samples[1][0] <= at - self._window_s:
            self._samples.popleft()

    @property
    def seconds(self) -> float:
        return self._samples[-1][0] - self._samples[0][0] if self._samples else 0.0

    def increase(self, name: str, **labels: str) -> float:
        """Summed over all samples that carry these labels."""
        return sum(grown for _, grown in self._grown(name, labels))

    def rate(self, name: str, **labels: str) -> float | None:
        """A second; None before there are two samples."""
        return self.increase(name, **labels) / self.seconds if self.seconds > 0 else None

    def quantile(self, name: str, q: float, **labels: str) -> float | None:
        """Of a histogram, as Prometheus interpolates it; None without an observation."""
        buckets: dict[float, float] = {}
        for found, grown in self._grown(f"{name}_bucket", labels):
            bound = float(dict(found)["le"])
            buckets[bound] = buckets.get(bound, 0.0) + grown
        return quantile(sorted(buckets.items()), q)

    def _grown(self, name: str, labels: Mapping[str, str]) -> Iterable[tuple[Labels, float]]:
        if not self._samples:
            return
        first, last = self._samples[0][1], self._samples[-1][1]
        for (sample, found), value in last.items():
            if sample == name and labels.items() <= dict(found).items():
                before = first.get((sample, found), 0.0) if len(self._samples) > 1 else 0.0
                yield found, value - before if value >= before else value


def quantile(buckets: list[tuple[float, float]], q: float) -> float | None:
    """`buckets` are (upper bound, count of all at or below it), by bound, the last one infinite."""
    total = buckets[-1][1] if buckets else 0.0
    if total <= 0:
        return None
    rank, lower, below = q * total, 0.0, 0.0
    for bound, count in buckets:
        if count >= rank:
            if bound == float("inf"):
                return lower
            # Rounded, the line between may end a hair above its bucket.
            return bound if count == below else min(bound, lower + (bound - lower) * (rank - below) / (count - below))
        lower, below = bound, count
    return lower
