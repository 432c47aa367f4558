"""The tier connectors with a witness: a digest of the KV bytes that left the engine, and of those that came back.

vLLM loads it in the place of a tier connector (`kv_connector_module_path`); `witness.file` in the extra config says where
a line of JSON a chunk and rank goes: {"at", "rank", "request", "prefix", "digest"}. `at` is

    store   just before the chunk's blocks are given to LMCache
    load    just after LMCache says that it has filled them (on a CPU its copies are synchronous)
    end     when the request that loaded them has ended, its blocks still its own

`prefix` names the chunk by all tokens up to its end and the salt, as a tier's key does.
"""

import hashlib
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lmcache.integration.vllm.lmcache_mp_metadata import LMCacheMPRequestMetadata
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.forward_context import ForwardContext
from vllm.v1.kv_cache_interface import KVCacheConfig

from benchmarks.kv_tiers.witnessed import FILE
from prime_inference.kv.capacity import CHUNK_TOKENS
from prime_inference.kv.connector import TierConnector
from prime_inference.kv.sharded_connector import ShardedTierConnector


class Witness(TierConnector):
    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig | None = None
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._rank_told = int(vllm_config.parallel_config.rank)
        self._file = Path(vllm_config.kv_transfer_config.kv_connector_extra_config[FILE])
        self._layers: list[torch.Tensor] = []
        self._loaded: dict[str, LMCacheMPRequestMetadata] = {}

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._layers = list(kv_caches.values())
        super().register_kv_caches(kv_caches)

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        super().start_load_kv(forward_context, **kwargs)
        for moved in self._of("RETRIEVE"):
            self._write("load", moved)
            self._loaded[moved.request_id] = moved

    def wait_for_save(self) -> None:
        for moved in self._of("STORE"):
            self._write("store", moved)
        super().wait_for_save()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        for request_id in finished_req_ids & set(self._loaded):
            self._write("end", self._loaded.pop(request_id))
        answer: tuple[set[str] | None, set[str] | None] = super().get_finished(finished_req_ids)
        return answer

    def _of(self, direction: str) -> list[LMCacheMPRequestMetadata]:
        return [each for each in self._get_connector_metadata().requests if each.direction == direction]

    def _write(self, at: str, moved: LMCacheMPRequestMetadata) -> None:
        op = moved.op
        blocks_a_chunk = len(op.flat_block_ids) * CHUNK_TOKENS // (op.end - op.start)
        with self._file.open("a") as lines:
            for number, start in enumerate(range(op.start, op.end, CHUNK_TOKENS)):
                blocks = op.flat_block_ids[number * blocks_a_chunk : (number + 1) * blocks_a_chunk]
                line = {
                    "at": at,
                    "rank": self._rank_told,
                    "request": moved.request_id,
                    "prefix": name_of(op.token_ids[: start + CHUNK_TOKENS], moved.cache_salt),
                    "digest": digest_of(self._layers, blocks),
                }
                lines.write(json.dumps(line) + "\n")


class WitnessConnector(Witness):
    """Of the tier connector."""


class ShardedWitnessConnector(Witness, ShardedTierConnector):
    """Of the sharded one: every rank tells of all chunks, whoever moved them."""


def name_of(tokens: Sequence[int], salt: str) -> str:
    return hashlib.blake2b(salt.encode() + b"\0" + struct.pack(f"<{len(tokens)}q", *tokens), digest_size=16).hexdigest()


def digest_of(layers: Sequence[torch.Tensor], blocks: Sequence[int]) -> str:
    """Over the bytes of these blocks in all layers; blocks are the first dimension of every layer."""
    digest = hashlib.blake2b(digest_size=16)
    for layer in layers:
        digest.update(layer[list(blocks)].contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()
