"""The tier connector over Mooncake's store: vLLM's own store connector behind the gate (vLLM shell).

    {"kv_connector": "MooncakeTierConnector", "kv_connector_module_path": "prime_inference.kv.mooncake_connector",
     "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
     "kv_connector_extra_config": {"load_async": true, "prime.gate.bytes_per_s": 10.8e9,
         "prime.gate.prefill_tokens_per_s": 53000, "prime.salt": "required"}}

and MOONCAKE_CONFIG_PATH, as vLLM reads it. Everything that moves KV is vLLM's and Mooncake's. Of the store's answers

    -704  an object that was found is gone when it is loaded: vLLM reports its blocks, the prompt is computed from there, and
          this class does not look the request up again (vLLM 0.31 would, and load the same again: vllm 55297)
    -200  no space, everything is leased: vLLM drops the request's stores until one succeeds; a lookup here that is refused by
          the gate takes no lease, so a tier that does not pay does not hold up its own eviction either
    -706  a leased object cannot be removed: only vLLM's reset of the whole store removes any, and says that it failed

All are counted by operation and code. A request without a cache salt is kept out unless `prime.salt` is `shared`; the salt is
part of vLLM's block hashes, and so of the store's keys.
"""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.connector import MooncakeStoreConnector
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request

from prime_inference.kv.gate.plans import Step
from prime_inference.kv.gated import SETTINGS_PREFIX, Gated, bytes_per_token
from prime_inference.kv.metrics import TierStats
from prime_inference.kv.salt import SETTING as SALT
from prime_inference.kv.salt import SaltRule

STORE_CALLS = {"batch_put_from_multi_buffers": "put", "batch_get_into_multi_buffers": "get"}


class MooncakeTierConnector(Gated, MooncakeStoreConnector):  # type: ignore[misc]  # vLLM's types are not followed
    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig | None = None
    ) -> None:
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        refuse_unknown(extra)
        self._begin_gate(extra, bytes_per_token(kv_cache_config))
        self._begin()
        super().__init__(vllm_config, role, kv_cache_config)
        if role is KVConnectorRole.WORKER:
            self.connector_worker.store = self._store = CountedStore(self.connector_worker.store)

    def _begin(self) -> None:
        self._kept_out: set[str] = set()
        self._loaded: set[str] = set()

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        name = request.request_id
        if not request.cache_salt and self._salt_rule is SaltRule.REQUIRED:
            self._kept_out.add(name)
            return 0, False
        if name in self._loaded:
            return 0, False
        now = time.monotonic()
        ask = self._plans.ask(name, request.num_tokens, num_computed_tokens, self._queued_tokens(), now)
        if ask.step in (Step.COMPUTE, Step.GIVE_UP):
            return 0, False
        tokens, asynchronous = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if tokens is None:
            return None, asynchronous
        spec = self.connector_scheduler.load_specs.get(name)
        if tokens and spec is not None and ask.step is Step.LOOK_UP and spec.kvpool_cached_tokens > ask.end_tokens:
            tokens = max(0, ask.end_tokens - num_computed_tokens)  # the part that pays; whole chunks, so whole blocks
            spec.kvpool_cached_tokens = num_computed_tokens + tokens
        self._plans.found(name, num_computed_tokens + tokens if tokens else 0, now)
        return tokens, asynchronous and tokens > 0

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._admitted[request.request_id] = request
        if num_external_tokens > 0:
            self._loaded.add(request.request_id)
        elif request.num_computed_tokens == 0:
            self._plans.admitted(request.request_id, time.monotonic())

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        for finished in scheduler_output.finished_req_ids:
            self._kept_out.discard(finished)
            self._loaded.discard(finished)
        self._step(scheduler_output, time.monotonic())
        metadata = super().build_connector_meta(scheduler_output)
        for moved in metadata.requests:
            if moved.req_id in self._kept_out:
                moved.block_hashes = []  # nothing to name, so nothing is stored; the job still ends and frees its blocks
        return metadata

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        super().update_connector_output(connector_output)
        whole = not connector_output.invalid_block_ids
        for request_id in connector_output.finished_recving or ():
            self._plans.finished(request_id, whole, time.monotonic())

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        now = time.monotonic()
        self._observe_end(request, now)
        self._plans.forget(request.request_id, now)
        self._admitted.pop(request.request_id, None)
        answer: tuple[bool, dict[str, Any] | None] = super().request_finished_all_groups(request, block_ids)
        return answer

    def get_kv_connector_stats(self) -> TierStats | None:
        """On the worker's side what the store refused. Mooncake's own counters of bytes and seconds are not passed on: one
        connector has one kind of counters."""
        if self.role is KVConnectorRole.SCHEDULER:
            return self._gate_stats()
        refused, self._store.refused = self._store.refused, Counter()
        if not refused:
            return None
        stats = TierStats()
        stats.data["store_refusals"] = dict(refused)
        return stats


class CountedStore:
    """Mooncake's store, with the negative answers of its transfers counted as "operation/code"."""

    def __init__(self, store: Any) -> None:
        self._inner = store
        self.refused: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._inner, name)
        operation = STORE_CALLS.get(name)
        if operation is None:
            return call

        def counted(*arguments: Any, **named: Any) -> Sequence[int]:
            answers: Sequence[int] = call(*arguments, **named)
            self.refused.update(f"{operation}/{answer}" for answer in answers if answer < 0)
            return answers

        return counted


def refuse_unknown(extra: dict[str, Any]) -> None:
    """Raises ValueError for a key of ours that nobody reads, and for loads that would hold up the engine's step."""
    unknown = sorted(
        key for key in extra if key.startswith("prime.") and not key.startswith(SETTINGS_PREFIX) and key != SALT
    )
    if unknown:
        raise ValueError(f"unknown key {unknown[0]}; allowed: {SALT} and {SETTINGS_PREFIX}*")
    if extra.get("load_async", True) is not True:
        raise ValueError("load_async must be true: a synchronous load makes every request wait for the slowest")
