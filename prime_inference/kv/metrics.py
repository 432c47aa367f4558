"""What the tier connector tells vLLM's /metrics (vLLM shell).

| metric | type | labels | says |
| --- | --- | --- | --- |
| `prime_kv_gate_decisions_total` | counter | choice, reason | one a request; closed values of gate/decision.py |
| `prime_kv_loads_total` | counter | end | how loads that were begun ended; closed values of gate/plans.py |
| `prime_kv_loaded_tokens_total` | counter | | prompt tokens that came from the tier |
| `prime_kv_load_seconds` | histogram | | from the question to the end of the copy into the engine |
| `prime_kv_rank_chunks_total` | counter | rank, operation | sharded connector: chunks a rank `stored`, `loaded`, `received` |
| `prime_kv_store_refusals_total` | counter | operation, code | Mooncake: keys that a `put` or `get` was refused for |
| `prime_kv_server_losses_total` | counter | | LMCache's server went away or did not answer (seen by the scheduler) |
| `prime_kv_gate_bytes_per_second` | gauge | | what the gate believes of the tier |
| `prime_kv_gate_prefill_tokens_per_second` | gauge | | what it believes of the engine |

On the page each name begins with `vllm:`: a Dynamo worker passes on only what begins with that.

A share of `late` or `failed` that grows says that the tier has become slower or has lost shards; `slower` that it is
not worth its memory at this engine's prefill rate.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import prometheus_client
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

LOAD_SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)
"""Around the 0.07 s of a 16k prompt from eight stores and the 0.31 s of its recompute."""


COUNTS = ("decisions", "ends", "rank_chunks", "store_refusals")
BELIEFS = ("bytes_per_s", "tokens_per_s")


def empty() -> dict[str, Any]:
    """`decisions`: "choice/reason" -> count; `ends`: end -> count; `rank_chunks`: "rank/operation" -> count;
    `store_refusals`: "operation/code" -> count; the gate's beliefs are None where nobody said. Plain values: they travel
    between processes."""
    counts: dict[str, Any] = {name: {} for name in COUNTS}
    counts |= dict.fromkeys(BELIEFS)
    return counts | {"loaded_tokens": 0, "load_seconds": [], "server_losses": 0}


@dataclass
class TierStats(KVConnectorStats):  # type: ignore[misc]  # vLLM's types are not followed
    """What happened since the last scheduler step that reported."""

    data: dict[str, Any] = field(default_factory=empty)

    def reset(self) -> None:
        self.data = empty()

    def aggregate(self, other: KVConnectorStats) -> "TierStats":
        for name in COUNTS:
            self.data[name] = dict(Counter(self.data[name]) + Counter(other.data[name]))
        for name in ("loaded_tokens", "server_losses"):
            self.data[name] += other.data[name]
        for name in BELIEFS:
            if other.data[name] is not None:
                self.data[name] = other.data[name]
        self.data["load_seconds"] = self.data["load_seconds"] + other.data["load_seconds"]
        return self

    def reduce(self) -> dict[str, int | float]:
        """One line of vLLM's log."""
        seconds = self.data["load_seconds"]
        return {
            **self.data["decisions"],
            **self.data["ends"],
            "loaded tokens": self.data["loaded_tokens"],
            "mean load s": round(sum(seconds) / len(seconds), 4) if seconds else 0.0,
        }

    def is_empty(self) -> bool:
        return not any(self.data[name] for name in (*COUNTS, "server_losses"))


class TierPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]  # vLLM's types are not followed
    """Registers the metrics once a process and adds to them what each engine reports."""

    def __init__(
        self,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        counter, histogram = metric_types[prometheus_client.Counter], metric_types[prometheus_client.Histogram]
        self._decisions = counter(
            name="vllm:prime_kv_gate_decisions",
            documentation="Prompts by what the gate decided and why.",
            labelnames=[*labelnames, "choice", "reason"],
        )
        self._ends = counter(
            name="vllm:prime_kv_loads", documentation="Tier loads by how they ended.", labelnames=[*labelnames, "end"]
        )
        self._tokens = counter(
            name="vllm:prime_kv_loaded_tokens",
            documentation="Prompt tokens loaded from the tier.",
            labelnames=labelnames,
        )
        self._seconds = histogram(
            name="vllm:prime_kv_load_seconds",
            documentation="Seconds from the lookup to the end of the copy into the engine.",
            buckets=LOAD_SECONDS_BUCKETS,
            labelnames=labelnames,
        )
        self._rank_chunks = counter(
            name="vllm:prime_kv_rank_chunks",
            documentation="Chunks of a replicated KV by the rank that moved them.",
            labelnames=[*labelnames, "rank", "operation"],
        )
        self._refusals = counter(
            name="vllm:prime_kv_store_refusals",
            documentation="Keys that Mooncake's store refused, by its code.",
            labelnames=[*labelnames, "operation", "code"],
        )
        self._losses = counter(
            name="vllm:prime_kv_server_losses",
            documentation="Times LMCache's server went away or did not answer.",
            labelnames=labelnames,
        )
        gauge = metric_types[prometheus_client.Gauge]
        self._beliefs = {
            "bytes_per_s": gauge(
                name="vllm:prime_kv_gate_bytes_per_second",
                documentation="Bandwidth that the gate expects of the tier.",
                labelnames=labelnames,
            ),
            "tokens_per_s": gauge(
                name="vllm:prime_kv_gate_prefill_tokens_per_second",
                documentation="Prompt tokens a second that the gate expects of the engine.",
                labelnames=labelnames,
            ),
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for name, count in transfer_stats_data["decisions"].items():
            self._decisions.labels(*labels, *name.split("/")).inc(count)
        for end, count in transfer_stats_data["ends"].items():
            self._ends.labels(*labels, end).inc(count)
        for name, count in transfer_stats_data["rank_chunks"].items():
            self._rank_chunks.labels(*labels, *name.split("/")).inc(count)
        for name, count in transfer_stats_data["store_refusals"].items():
            self._refusals.labels(*labels, *name.split("/")).inc(count)
        self._tokens.labels(*labels).inc(transfer_stats_data["loaded_tokens"])
        self._losses.labels(*labels).inc(transfer_stats_data["server_losses"])
        for name, belief in self._beliefs.items():
            if transfer_stats_data[name] is not None:
                belief.labels(*labels).set(transfer_stats_data[name])
        for seconds in transfer_stats_data["load_seconds"]:
            self._seconds.labels(*labels).observe(seconds)
