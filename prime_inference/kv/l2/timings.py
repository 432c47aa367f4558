"""How long batches took, from the submit call to the last key's outcome. Pure; the caller holds its own lock."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

from prime_inference.kv.l2.outcomes import Operation

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.55, 1.0, 2.0, 2.2, 5.0, 5.5)
"""Upper edges. After each default deadline (settings.py) one a tenth later: what ends there was cut off, and by how much."""


@dataclass
class BatchTimings:
    """`counts`: (operation, index into BUCKETS_S) -> batches, the last index being what took longer than all edges."""

    counts: Counter[tuple[Operation, int]] = field(default_factory=Counter)
    total_s: dict[Operation, float] = field(default_factory=dict)
    slowest_s: dict[Operation, float] = field(default_factory=dict)

    def took(self, operation: Operation, seconds: float) -> None:
        self.counts[operation, bisect_left(BUCKETS_S, seconds)] += 1
        self.total_s[operation] = self.total_s.get(operation, 0.0) + seconds
        self.slowest_s[operation] = max(seconds, self.slowest_s.get(operation, 0.0))

    def cumulative(self, operation: Operation) -> list[tuple[str, float]]:
        """As a histogram's page wants it: (upper edge, batches up to it), the last edge being +Inf."""
        edges = [*map(str, BUCKETS_S), "+Inf"]
        so_far, told = 0, []
        for index, edge in enumerate(edges):
            so_far += self.counts[operation, index]
            told.append((edge, float(so_far)))
        return told
