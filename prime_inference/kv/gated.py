"""The gate on the scheduler's side of a tier connector, whichever tier it is: settings, counters, what a step says of the
prefill rate (vLLM shell)."""

import logging
import time
from collections import Counter
from dataclasses import fields
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request, RequestStatus

from prime_inference.kv.capacity import CHUNK_TOKENS
from prime_inference.kv.gate.decision import Policy
from prime_inference.kv.gate.estimates import PrefillEstimate, TierEstimate
from prime_inference.kv.gate.gate import LoadGate
from prime_inference.kv.gate.plans import LoadPlans
from prime_inference.kv.metrics import TierPromMetrics, TierStats
from prime_inference.kv.salt import SETTING as SALT
from prime_inference.kv.salt import parse_rule

log = logging.getLogger("vllm.prime_inference.tier")  # vLLM's processes have a handler for the name vllm only

TIER = "tier"

SETTINGS_PREFIX = "prime.gate."

FIXED_S = 0.01
"""A lookup, its poll at the next scheduler step and the step that sees the copy end."""

SHORTEST_STEP_TOKENS = CHUNK_TOKENS
"""A step with fewer prompt tokens is mostly decode, and says little about the prefill rate."""

REPORT_EVERY_S = 60.0


class Gated:
    """Beside one of vLLM's connector classes."""

    def _begin_gate(self, extra: dict[str, Any], bytes_per_token: int) -> None:
        """Raises ValueError for a setting that is unknown, missing or impossible."""
        now = time.monotonic()
        self._plans = build_plans(extra, bytes_per_token, now)
        self._salt_rule = parse_rule(extra.get(SALT))
        self._admitted: dict[str, Request] = {}
        self._last_step: tuple[float, int, set[str]] = (now, 0, set())
        self._reported_at = now
        self._decisions_told: Counter[str] = Counter()

    def _step(self, scheduler_output: SchedulerOutput, now: float) -> None:
        self._observe_step(scheduler_output, now)
        if now - self._reported_at >= REPORT_EVERY_S:
            self._report(now)

    def _gate_stats(self) -> TierStats:
        """What the gate decided and how loads ended since the last call."""
        decisions = Counter({f"{choice}/{reason}": n for (choice, reason), n in self._plans.gate.decisions.items()})
        ended, self._plans.ended = self._plans.ended, []
        stats = TierStats()
        stats.data["decisions"] = dict(decisions - self._decisions_told)
        stats.data["ends"] = dict(Counter(str(load.end) for load in ended))
        stats.data["loaded_tokens"] = sum(load.tokens for load in ended)
        stats.data["load_seconds"] = [load.seconds for load in ended if load.tokens]
        stats.data["bytes_per_s"] = self._plans.gate.tiers[TIER].bytes_per_s
        stats.data["tokens_per_s"] = self._plans.gate.prefill.tokens_per_s
        self._decisions_told = decisions
        return stats

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats:
        return TierStats() if data is None else TierStats(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> TierPromMetrics:
        return TierPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def _queued_tokens(self) -> int:
        """Prompt tokens of admitted requests that are still to be computed."""
        return sum(
            max(0, request.num_prompt_tokens - request.num_computed_tokens)
            for request in self._admitted.values()
            if request.status == RequestStatus.RUNNING
        )

    def _observe_step(self, scheduler_output: SchedulerOutput, now: float) -> None:
        """Between two steps that share a request the engine was busy with the first one throughout."""
        began, prompt_tokens, requests = self._last_step
        scheduled = scheduler_output.num_scheduled_tokens
        if not scheduled:
            return  # vLLM also asks while a step runs, when there is nothing to add
        if prompt_tokens >= SHORTEST_STEP_TOKENS and not requests.isdisjoint(scheduled):
            self._plans.gate.prefill.observed(prompt_tokens, now - began)
        self._last_step = (now, sum(tokens for tokens in scheduled.values() if tokens > 1), set(scheduled))

    def _observe_end(self, request: Request, now: float) -> None:
        """A request that ends by itself ends with a step. A prefill worker's prompt that fits one step has no second one: it
        asks for one token, and this is all that it says of the prefill rate."""
        began, prompt_tokens, requests = self._last_step
        ended = request.status in (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)
        if ended and prompt_tokens >= SHORTEST_STEP_TOKENS and request.request_id in requests:
            self._plans.gate.prefill.observed(prompt_tokens, now - began)
            self._last_step = (began, 0, requests)  # once a step, however many requests end with it

    def _report(self, now: float) -> None:
        self._reported_at = now
        gate = self._plans.gate
        log.info(
            "tier gate: %s; loads: %s; estimates: %.3g bytes/s, %.3g tokens/s",
            {f"{choice}/{reason}": count for (choice, reason), count in gate.decisions.items()},
            {str(end): count for end, count in self._plans.ends.items()},
            gate.tiers[TIER].bytes_per_s,
            gate.prefill.tokens_per_s,
        )


def build_plans(extra: dict[str, Any], bytes_per_token: int, now: float) -> LoadPlans:
    """The gate from `kv_connector_extra_config`. Raises ValueError for an unknown, missing or impossible setting."""
    given = {
        key.removeprefix(SETTINGS_PREFIX): value for key, value in extra.items() if key.startswith(SETTINGS_PREFIX)
    }
    policy_names = {field.name for field in fields(Policy)}
    required = {"bytes_per_s", "prefill_tokens_per_s"}
    allowed = required | {"fixed_s"} | policy_names
    unknown = sorted(set(given) - allowed)
    if unknown:
        raise ValueError(f"unknown key {SETTINGS_PREFIX}{unknown[0]}; allowed: {', '.join(sorted(allowed))}")
    missing = sorted(required - set(given))
    if missing:
        raise ValueError(f"{SETTINGS_PREFIX}{missing[0]} is missing: give what the start-up check measured")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"{SETTINGS_PREFIX}{name} must be a positive number, got {value!r}")
    tier = TierEstimate(float(given["bytes_per_s"]), float(given.get("fixed_s", FIXED_S)), now)
    policy = Policy(**{name: given[name] for name in policy_names & set(given)})
    gate = LoadGate(bytes_per_token, {TIER: tier}, PrefillEstimate(float(given["prefill_tokens_per_s"])), policy)
    return LoadPlans(gate, TIER)


def bytes_per_token(kv_cache_config: KVCacheConfig | None) -> int:
    """KV bytes a token of this engine's rank: all its cache tensors over the tokens they hold."""
    if kv_cache_config is None or not kv_cache_config.kv_cache_groups:
        return 1  # the worker's side has no use for it
    block_tokens = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
    total = sum(tensor.size for tensor in kv_cache_config.kv_cache_tensors)
    return max(1, int(total // (kv_cache_config.num_blocks * block_tokens)))
