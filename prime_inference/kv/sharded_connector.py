"""The tier connector for a KV that all ranks hold: each rank stores and loads only its own chunks (vLLM shell).

    {"kv_connector": "ShardedTierConnector", "kv_connector_module_path": "prime_inference.kv.sharded_connector", ...
     "kv_connector_extra_config": {"lmcache.mp.server_urls": ["tcp://127.0.0.1:5555", "tcp://127.0.0.1:5556"], ...}}

Under latent attention the KV is the same on every rank. There is one LMCache server a rank, each with a Valkey of its own,
and chunk c of a prompt belongs to rank c mod W:

- store    a rank gives its server only its own chunks
- lookup   the scheduler asks every server for its rank's chunks; the smallest reach is the hit (sharding/shard_client.py)
- load     each rank loads its own chunks into the engine, then they are broadcast chunk by chunk (sharding/broadcast.py).
           Blocks beyond the prefix that all ranks agreed on are reported as not loaded, on every rank, and computed

Loads run on the thread that runs the model, which every rank enters in the same step with the same requests in the same
order: that is what a collective needs. LMCache's copies are awaited there too. With one rank nothing differs from the tier
connector.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from lmcache.integration.vllm.lmcache_mp_metadata import LMCacheMPRequestMetadata
from lmcache.integration.vllm.vllm_multi_process_adapter import LoadStoreOp, ParallelStrategy
from lmcache.v1.multiprocess.futures import MessagingFuture
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.forward_context import ForwardContext
from vllm.v1.kv_cache_interface import KVCacheConfig

from prime_inference.kv.capacity import CHUNK_TOKENS
from prime_inference.kv.connector import TierConnector
from prime_inference.kv.metrics import TierStats
from prime_inference.kv.sharding.agreement import Agreement, LoadOutcome
from prime_inference.kv.sharding.blocks import ChunkBlocks, OneBuffer
from prime_inference.kv.sharding.broadcast import ShardedLoad
from prime_inference.kv.sharding.ownership import owner_of
from prime_inference.kv.sharding.shard_client import ShardClient
from prime_inference.kv.sharding.shard_prompt import chunk_digests, owned_below, shard_prompt

log = logging.getLogger("vllm.prime_inference.tier")

ALONE = ParallelStrategy(mla_only=True, vllm_world_size=1, vllm_worker_id=0, tp_size=1, pp_size=1, n_servers=1)
"""What LMCache is told of the ranks: each is alone with its server, writes there and is its only reader."""

CALLS_A_LOAD = 2
"""LMCache's calls a load, each bounded by `prime.server.answer_within_s`."""

BROADCAST_WITHIN_S = 10.0
"""Beside the calls: the copies and the broadcasts of one prompt."""

GROUP = "prime-kv-sharded-load"


class ShardedTierConnector(TierConnector):
    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig | None = None
    ) -> None:
        parallel = vllm_config.parallel_config
        self._world = int(parallel.world_size)
        self._rank = int(parallel.rank) if role is KVConnectorRole.WORKER else 0
        groups = len(kv_cache_config.kv_cache_groups) if kv_cache_config is not None else 1
        refuse_what_is_not_replicated(vllm_config, self._world, groups)
        super().__init__(vllm_config, role, kv_cache_config)
        self._chunks_moved: Counter[str] = Counter()
        if self._world == 1:
            return
        if role is KVConnectorRole.SCHEDULER:
            self.scheduler_adapter.parallel_strategy = ALONE
            for rank, url in enumerate(self.scheduler_adapter._server_urls):
                client = self.scheduler_adapter.req_clients[url]
                self.scheduler_adapter.req_clients[url] = ShardClient(client, rank, self._world, CHUNK_TOKENS, ended)
        else:
            self.worker_adapter.parallel_strategy = ALONE
            # A group of our own: after a rank was lost in a collective, the engine's groups must not be the broken ones.
            group = dist.new_group(list(range(self._world)), backend="gloo")
            store = dist.PrefixStore(GROUP, dist.distributed_c10d._get_default_store())
            self._collective = ShardedLoad(group, store, self._rank, self._world)

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        if self._world > 1:
            self._blocks = ChunkBlocks(list(kv_caches.values()), self._kv_cache_config.num_blocks)
        super().register_kv_caches(kv_caches)

    def wait_for_save(self) -> None:
        if self._world == 1:
            super().wait_for_save()
            return
        for moved in self._moved("STORE"):
            own = self._own(moved.op)
            if own.start < own.end:
                self._submit("store", moved, own)
                self._chunks_moved["stored"] += (own.end - own.start) // CHUNK_TOKENS

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        if self._world == 1:
            super().start_load_kv(forward_context, **kwargs)
            return
        for moved in self._moved("RETRIEVE"):
            self._load_together(moved)

    def get_kv_connector_stats(self) -> TierStats | None:
        if self.role is KVConnectorRole.SCHEDULER:
            return super().get_kv_connector_stats()
        moved, self._chunks_moved = self._chunks_moved, Counter()
        if not moved:
            return None
        stats = TierStats()
        stats.data["rank_chunks"] = {f"{self._rank}/{what}": count for what, count in moved.items()}
        return stats

    # ── internals ──

    def _moved(self, direction: str) -> list[LMCacheMPRequestMetadata]:
        return [each for each in self._get_connector_metadata().requests if each.direction == direction]

    def _load_together(self, moved: LMCacheMPRequestMetadata) -> None:
        op, adapter = moved.op, self.worker_adapter
        first, end = op.start // CHUNK_TOKENS, op.end // CHUNK_TOKENS
        blocks = blocks_by_chunk(op)
        row = torch.empty(self._blocks.bytes_of(len(blocks[0])), dtype=torch.uint8)
        skip = op.skip_first_n_tokens * len(blocks[0]) // CHUNK_TOKENS

        def mine(chunk: int) -> bool:
            return owner_of(first + chunk, self._world) == self._rank

        def fill(chunk: int) -> None:
            if mine(chunk):
                self._blocks.gather(blocks[chunk], row)

        def arrived(chunk: int) -> None:
            if not mine(chunk):
                self._blocks.scatter(blocks[chunk], row, skip=skip if chunk == 0 else 0)

        agreement = self._collective.load(
            moved.request_id,
            chunk_digests(tuple(op.token_ids), CHUNK_TOKENS)[first:end],
            OneBuffer(row, len(blocks), fill),
            lambda owned: [self._load_owned(moved)] * len(owned) if owned else [],
            CALLS_A_LOAD * self._answer_within_s + BROADCAST_WITHIN_S,
            first=first,
            arrived=arrived,
        )
        self._count_load(agreement, [mine(chunk) for chunk in range(len(blocks))])
        for beyond in blocks[agreement.chunks :]:
            adapter.error_block_ids.update(beyond)
        # The whole load has ended, however it went: LMCache's adapter reports it once, with no blocks of its own.
        adapter._dropped_retrieves.discard(moved.request_id)
        adapter.retrieve_futures[moved.request_id] = (ended(True), [])

    def _load_owned(self, moved: LMCacheMPRequestMetadata) -> bool:
        """Load this rank's chunks into the engine's blocks; are they all there?"""
        self._submit("retrieve", moved, self._own(moved.op))
        submitted = self.worker_adapter.retrieve_futures.pop(moved.request_id, None)
        if submitted is None:
            return False  # LMCache's server is away
        future: Any = submitted[0]
        try:
            return bool(future.result(timeout=self._answer_within_s))
        except TimeoutError:
            return False

    def _submit(self, what: str, moved: LMCacheMPRequestMetadata, own: LoadStoreOp) -> None:
        submit = getattr(self.worker_adapter, f"submit_{what}_request")
        event = self.worker_adapter.create_recorded_event()
        submit(moved.request_id, own, event, cache_salt=moved.cache_salt, request_configs=moved.request_configs)

    def _count_load(self, agreement: Agreement, mine: Sequence[bool]) -> None:
        used = mine[: agreement.chunks]
        self._chunks_moved["loaded"] += sum(used)
        self._chunks_moved["received"] += len(used) - sum(used)
        if agreement.outcome is not LoadOutcome.LOADED:
            log.warning(
                "a sharded load ended as %s: %d of %d chunks are used", agreement.outcome, agreement.chunks, len(mine)
            )

    def _own(self, op: LoadStoreOp) -> LoadStoreOp:
        """The rank's part of a load or store, in the terms of its own prompt."""
        first, end = op.start // CHUNK_TOKENS, op.end // CHUNK_TOKENS
        blocks = blocks_by_chunk(op)
        own = [chunk for chunk in range(first, end) if owner_of(chunk, self._world) == self._rank]
        return LoadStoreOp(
            token_ids=shard_prompt(op.token_ids, CHUNK_TOKENS, self._rank, self._world),
            block_ids=[[block for chunk in own for block in blocks[chunk - first]]],
            start=owned_below(first, self._rank, self._world) * CHUNK_TOKENS,
            end=owned_below(end, self._rank, self._world) * CHUNK_TOKENS,
            skip_first_n_tokens=op.skip_first_n_tokens if own[:1] == [first] else 0,
        )


def blocks_by_chunk(op: LoadStoreOp) -> list[list[int]]:
    blocks = op.flat_block_ids
    a_chunk = len(blocks) * CHUNK_TOKENS // (op.end - op.start)
    return [blocks[at : at + a_chunk] for at in range(0, len(blocks), a_chunk)]


def ended(result: object) -> Any:
    """A future of LMCache's that has its result."""
    future: Any = MessagingFuture()
    future.set_result(result)
    return future


def refuse_what_is_not_replicated(vllm_config: VllmConfig, world: int, groups: int = 1) -> None:
    """Raises ValueError, with the cure, where ranks hold different KV, servers do not match ranks, or a chunk's blocks have
    numbers of their own in each of several `groups` of layers."""
    parallel, extra = vllm_config.parallel_config, vllm_config.kv_transfer_config.kv_connector_extra_config
    if world == 1:
        return
    for size in ("pipeline_parallel_size", "decode_context_parallel_size", "data_parallel_size"):
        if getattr(parallel, size, 1) > 1:
            raise ValueError(f"ShardedTierConnector needs {size} 1: use TierConnector")
    if not vllm_config.model_config.use_mla:
        raise ValueError("ShardedTierConnector is for latent attention, whose KV all ranks hold: use TierConnector")
    urls = extra.get("lmcache.mp.server_urls") or []
    count = len(urls.split(",")) if isinstance(urls, str) else len(urls)
    if count != world:
        raise ValueError(f"lmcache.mp.server_urls names {count} servers for {world} ranks: give one a rank")
    if groups > 1:
        raise ValueError(f"ShardedTierConnector moves one group of layers, this model has {groups}: use TierConnector")
    if extra.get("lmcache.mp.lazy_offload"):
        raise ValueError("ShardedTierConnector cannot be used with lmcache.mp.lazy_offload")
