"""The load generator's histograms: reading, adding, percentiles, and the short form that result files keep. Pure.

A histogram counts nanoseconds in buckets of 64 steps an octave: buckets 0 to 127 are one value each; from there on
bucket b holds [m << s, (m + 1) << s) with s = b // 64 - 1 and m = 64 + b % 64, which is at most 1.6 % wide. A percentile is
the middle of its bucket, so wrong by at most 0.8 %.
"""

import base64
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence

STEPS = 64
NS_A_MS = 1e6

Histogram = Counter[int]
"""Bucket -> count."""


def from_pairs(flat: Sequence[int]) -> Histogram:
    """[bucket, count, bucket, count, ...], as the load generator prints it."""
    return Counter(dict(zip(flat[::2], flat[1::2], strict=True)))


def packed(histogram: Histogram) -> str:
    """Short text: the pairs, bucket as its distance from the one before, deflated, in base64."""
    flat: list[int] = []
    last = 0
    for bucket in sorted(histogram):
        flat += [bucket - last, histogram[bucket]]
        last = bucket
    return base64.b64encode(zlib.compress(json.dumps(flat, separators=(",", ":")).encode(), 9)).decode()


def unpacked(text: str) -> Histogram:
    flat = json.loads(zlib.decompress(base64.b64decode(text)))
    histogram: Histogram = Counter()
    bucket = 0
    for distance, count in zip(flat[::2], flat[1::2], strict=True):
        bucket += distance
        histogram[bucket] = count
    return histogram


def added(histograms: Iterable[Histogram]) -> Histogram:
    total: Histogram = Counter()
    for each in histograms:
        total.update(each)
    return total


def middle_ns(bucket: int) -> float:
    if bucket < 2 * STEPS:
        return float(bucket)
    shift = bucket // STEPS - 1
    return ((STEPS + bucket % STEPS) + 0.5) * (1 << shift)


def percentile_ms(histogram: Histogram, share: float) -> float:
    """The least value that at least `share` of the samples do not exceed. Raises ValueError without samples."""
    total = sum(histogram.values())
    if not total:
        raise ValueError("no samples")
    seen = 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= share * total:
            return middle_ns(bucket) / NS_A_MS
    raise AssertionError("unreachable: shares are at most 1")
