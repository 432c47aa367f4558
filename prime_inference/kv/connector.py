"""The tier connector: LMCache's multiprocess connector behind the load-or-recompute gate (vLLM shell).

    --kv-transfer-config '{"kv_connector": "TierConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "prime_inference.kv.connector",
        "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": 5555,
            "prime.gate.bytes_per_s": 10.8e9, "prime.gate.prefill_tokens_per_s": 53000, "prime.salt": "required"}}'

Everything that moves KV is LMCache's. This class decides, on the scheduler's side, whether LMCache is asked at all, up
to where, and how long an answer is waited for:

- what the engine's own prefix cache covers is never looked up, so never fetched for nothing
- a prompt that is computed sooner than loaded is not looked up either
- a lookup not answered by its deadline is given up; when its answer comes after all, its time teaches the gate, and the locks
  that it took are released
- a request without a cache salt is kept out of the tier, unless `prime.salt` is `shared` (salt.py)
- no call to LMCache's server is waited for longer than `prime.server.answer_within_s` (server_health.py says why)

Tokens that the engine's own cache holds count as stored: they were offered to the tier when they were computed.
"""

import logging
import time
from typing import Any

from lmcache.integration.vllm.lmcache_mp_connector import LMCacheMPConnector
from lmcache.integration.vllm.lmcache_mp_metadata import LMCacheMPRequestState, LMCacheMPRequestTracker
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata, KVConnectorRole
from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.outputs import KVConnectorOutput
from vllm.v1.request import Request, RequestStatus

from prime_inference.kv.capacity import CHUNK_TOKENS
from prime_inference.kv.gate.plans import Step
from prime_inference.kv.gated import SETTINGS_PREFIX, Gated, bytes_per_token
from prime_inference.kv.lookup_watch import LookupWatch
from prime_inference.kv.metrics import TierStats
from prime_inference.kv.salt import SETTING as SALT
from prime_inference.kv.salt import SaltRule, lawful
from prime_inference.kv.server_watch import ServerWatch, guard_scheduler, guard_worker

log = logging.getLogger("vllm.prime_inference.tier")  # vLLM's processes have a handler for the name vllm only

ANSWER_WITHIN = "prime.server.answer_within_s"

ANSWER_WITHIN_S = 5.0
"""Default. An answer is a few messages and no data; a server that takes longer costs more than it saves."""

NEVER_STORE = 1 << 62
"""As many tokens count as stored already."""


class TierConnector(Gated, LMCacheMPConnector):  # type: ignore[misc]  # LMCache ships no types
    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig | None = None
    ) -> None:
        # Before LMCache's own start, which waits for its server: a wrong setting should not.
        self._begin(vllm_config.kv_transfer_config.kv_connector_extra_config, bytes_per_token(kv_cache_config))
        super().__init__(vllm_config, role, kv_cache_config)
        if role is KVConnectorRole.WORKER:
            url = server_of_rank(vllm_config.kv_transfer_config.kv_connector_extra_config, self.worker_adapter)
            self._watches = [guard_worker(self.worker_adapter, url, self._answer_within_s)]
        else:
            self._watches = guard_scheduler(self.scheduler_adapter, self._answer_within_s)
        if role is KVConnectorRole.SCHEDULER and self.scheduler_adapter.lmcache_tokens_per_chunk != CHUNK_TOKENS:
            chunk = self.scheduler_adapter.lmcache_tokens_per_chunk
            raise ValueError(f"LMCache runs with chunks of {chunk} tokens: start it with --chunk-size {CHUNK_TOKENS}")

    def _begin(self, extra: dict[str, Any], bytes_per_token: int) -> None:
        self._begin_gate(extra, bytes_per_token)
        self._answer_within_s = answer_within_s(extra)
        self._watches = list[ServerWatch]()
        self._losses_told = 0
        self._abandoned: dict[str, LMCacheMPRequestTracker] = {}
        self._lookups = LookupWatch(self._answer_of)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        tracker = self._get_or_create_request_tracker(request)
        if not request.cache_salt and self._salt_rule is SaltRule.REQUIRED:
            tracker.num_stored_tokens = NEVER_STORE
            return 0, False
        tracker.cache_salt = lawful(tracker.cache_salt)
        waiting = tracker.state is LMCacheMPRequestState.PREFETCHING
        if not waiting or request.status == RequestStatus.PREEMPTED:
            return self._ask_lmcache(request, num_computed_tokens)
        now = time.monotonic()
        name, own = request.request_id, num_computed_tokens
        # An answer is looked at before its deadline, which may have passed during a step of the model.
        answer = self._lookups.answer(name) if self._plans.waits_for(name) else None
        if answer is None:
            ask = self._plans.ask(name, request.num_tokens, own, self._queued_tokens(), now)
            if ask.step in (Step.COMPUTE, Step.GIVE_UP):
                if ask.step is Step.GIVE_UP:
                    # This state keeps the pending lookup, so that its locks can be released when it is answered.
                    tracker.state = LMCacheMPRequestState.BYPASS_LMCACHE
                    self._abandoned[name] = tracker
                self._count_own_as_stored(tracker, own)
                return 0, False
            if ask.step is Step.LOOK_UP:
                self.scheduler_adapter.maybe_submit_lookup_request(
                    name,
                    token_ids=tracker.get_token_ids()[: ask.end_tokens],
                    cache_salt=tracker.cache_salt,
                    request_configs=tracker.request_configs,
                )
                answer = self._lookups.watch(name)
        if answer is None:
            return None, True
        tracker.num_stored_tokens = 0  # LMCache adds the hit at every ask, also when the last one came to nothing
        tokens, asynchronous = self._ask_lmcache(request, own)
        if tokens is not None:
            self._plans.found(name, tokens, now, answer.at)
        return tokens, asynchronous

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        self._admitted[request.request_id] = request
        if num_external_tokens == 0 and request.num_computed_tokens == 0:
            self._plans.admitted(request.request_id, time.monotonic())

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        super().update_connector_output(connector_output)
        whole = not connector_output.invalid_block_ids
        for request_id in connector_output.finished_recving or ():
            self._plans.finished(request_id, whole, time.monotonic())

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        self._release_abandoned()
        self._step(scheduler_output, time.monotonic())
        return super().build_connector_meta(scheduler_output)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        now = time.monotonic()
        self._observe_end(request, now)
        self._release_abandoned()
        self._lookups.forget(request.request_id)
        self._plans.forget(request.request_id, now)
        self._admitted.pop(request.request_id, None)
        # A lookup still unanswered here keeps its locks until LMCache's own read-lock timeout.
        self._abandoned.pop(request.request_id, None)
        finished: tuple[bool, dict[str, Any] | None] = super().request_finished(request, block_ids)
        return finished

    def get_kv_connector_stats(self) -> TierStats | None:
        """None on the worker's side."""
        if self.role is not KVConnectorRole.SCHEDULER:
            return None
        stats = self._gate_stats()
        losses = sum(watch.losses for watch in self._watches)
        stats.data["server_losses"] = losses - self._losses_told
        self._losses_told = losses
        return stats

    def shutdown(self) -> None:
        if self.role is KVConnectorRole.SCHEDULER:
            self._report(time.monotonic())
            self._lookups.stop()
        for watch in self._watches:
            watch.stop()
        super().shutdown()

    # ── internals ──

    def _ask_lmcache(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        answer: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)
        return answer

    def _count_own_as_stored(self, tracker: LMCacheMPRequestTracker, own_tokens: int) -> None:
        tracker.num_vllm_hit_tokens = own_tokens // self._hit_alignment_tokens * self._hit_alignment_tokens
        tracker.num_stored_tokens = own_tokens // CHUNK_TOKENS * CHUNK_TOKENS

    def _answer_of(self, request_id: str) -> int | None:
        found: int | None = self.scheduler_adapter.check_lookup_result(request_id)
        return found

    def _release_abandoned(self) -> None:
        for request_id, tracker in list(self._abandoned.items()):
            answer = self._lookups.answer(request_id)
            if answer is None:
                continue
            self._plans.answered(request_id, answer.tokens, answer.at)
            if answer.tokens:
                self.scheduler_adapter.free_lookup_locks(
                    token_ids=tracker.get_token_ids(),
                    start=0,
                    end=answer.tokens,
                    request_id=request_id,
                    cache_salt=tracker.cache_salt,
                    request_configs=tracker.request_configs,
                )
            self.scheduler_adapter.cleanup_lookup_result(request_id)
            del self._abandoned[request_id]


def server_of_rank(extra: dict[str, Any], adapter: Any) -> str:
    """The server that LMCache gave this worker: ranks in equal, contiguous shares (`lmcache.mp.server_urls`), or one."""
    listed = extra.get("lmcache.mp.server_urls")
    if not listed:
        return f"{extra.get('lmcache.mp.host', 'tcp://localhost')}:{extra.get('lmcache.mp.port', 5555)}"
    urls = [url.strip() for url in listed.split(",")] if isinstance(listed, str) else list(listed)
    strategy = adapter.parallel_strategy
    return str(urls[strategy.vllm_worker_id * len(urls) // strategy.vllm_world_size])


def answer_within_s(extra: dict[str, Any]) -> float:
    """`prime.server.answer_within_s`. Raises ValueError for it and for any other key of ours that nobody reads."""
    ours = {key for key in extra if key.startswith("prime.") and not key.startswith(SETTINGS_PREFIX)}
    unknown = sorted(ours - {ANSWER_WITHIN, SALT})
    if unknown:
        raise ValueError(f"unknown key {unknown[0]}; allowed: {ANSWER_WITHIN}, {SALT} and {SETTINGS_PREFIX}*")
    value = extra.get(ANSWER_WITHIN, ANSWER_WITHIN_S)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"{ANSWER_WITHIN} must be a positive number, got {value!r}")
    return float(value)
