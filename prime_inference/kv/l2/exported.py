"""The sharded client with its counters on the metrics page of the process that loads it: LMCache's server.

| metric | type | labels | says |
| --- | --- | --- | --- |
| `prime_kv_l2_keys_total` | counter | shard, operation, outcome | keys by what became of them (outcomes.py) |
| `prime_kv_l2_bytes_total` | counter | shard, operation | value bytes moved into or out of LMCache's memory |
| `prime_kv_l2_batch_seconds` | histogram | operation | from the submit call to the last key's outcome |
| `prime_kv_l2_slowest_batch_seconds` | gauge | operation | the longest of them since the start |
"""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from prime_inference.kv.l2.client import ShardedL2Client


class ExportedL2Client(ShardedL2Client):
    """The same arguments and behaviour; one an address list and process, or the page would name a shard twice."""

    def __init__(self, urls: str | Sequence[str], shards: int | None = None, **params: object) -> None:
        super().__init__(urls, shards, **params)
        self._page = _Page(self)
        REGISTRY.register(self._page)

    def close(self) -> None:
        if not self._closed:
            REGISTRY.unregister(self._page)
        super().close()


class _Page:
    """What prometheus_client asks at every scrape."""

    def __init__(self, client: ShardedL2Client) -> None:
        self._client = client

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        counts, moved = self._client.counts()
        keys = CounterMetricFamily(
            "prime_kv_l2_keys", "Keys by what became of them.", labels=["shard", "operation", "outcome"]
        )
        for (shard, operation, outcome), count in counts.items():
            keys.add_metric([shard, operation, outcome], count)
        value_bytes = CounterMetricFamily("prime_kv_l2_bytes", "Value bytes moved.", labels=["shard", "operation"])
        for (shard, operation), count in moved.items():
            value_bytes.add_metric([shard, operation], count)
        timings = self._client.timings()
        seconds = HistogramMetricFamily(
            "prime_kv_l2_batch_seconds", "Seconds from a batch's submit call to its last outcome.", labels=["operation"]
        )
        slowest = GaugeMetricFamily(
            "prime_kv_l2_slowest_batch_seconds", "The longest of them since the start.", labels=["operation"]
        )
        for operation, longest_s in timings.slowest_s.items():
            seconds.add_metric([operation], timings.cumulative(operation), timings.total_s[operation])
            slowest.add_metric([operation], longest_s)
        yield from (keys, value_bytes, seconds, slowest)
