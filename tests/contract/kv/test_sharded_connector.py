"""The sharded tier connector over vLLM's and LMCache's real classes, two ranks as two threads over gloo. Only LMCache's
worker adapter is a stand-in, with the real class's signatures; tests/e2e/test_kv_bytes.py has real servers and engines."""

import inspect
import threading
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest

CHUNK = 256
BLOCK = 64
A_CHUNK = CHUNK // BLOCK
BLOCKS = 64
WORLD = 2


@pytest.fixture(scope="module")
def module() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch, vLLM and LMCache warn of their own parts at import
        from prime_inference.kv import sharded_connector
    return sharded_connector


class Tier:
    """What the ranks' servers hold: bytes by rank and the rank's own prefix. `away`: ranks whose server is lost."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, tuple[int, ...]], Any] = {}
        self.away: set[int] = set()


def worker_side(module: Any, rank: int, tier: Tier, store: Any) -> Any:
    import torch
    import torch.distributed as dist
    from lmcache.integration.vllm.vllm_multi_process_adapter import LMCacheMPWorkerAdapter
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    side = module.ShardedTierConnector.__new__(module.ShardedTierConnector)
    side._role, side._rank, side._world = KVConnectorRole.WORKER, rank, WORLD
    side._answer_within_s = 5.0
    side._chunks_moved = Counter()
    layers = [torch.zeros((BLOCKS, BLOCK, 6), dtype=torch.bfloat16) for _ in range(2)]
    side.layers = layers
    side._blocks = module.ChunkBlocks(layers, BLOCKS)
    group = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, WORLD, timedelta(seconds=20))
    side._collective = module.ShardedLoad(group, dist.PrefixStore("load", store), rank, WORLD)
    adapter = side.worker_adapter = create_autospec(LMCacheMPWorkerAdapter, instance=True)
    adapter.error_block_ids, adapter._dropped_retrieves, adapter.retrieve_futures = set(), set(), {}

    def names(op: Any) -> list[tuple[int, ...]]:
        return [tuple(op.token_ids[: end + CHUNK]) for end in range(op.start, op.end, CHUNK)]

    def submit_store(request: str, op: Any, event: object, **_: object) -> None:
        for at, name in enumerate(names(op)):
            blocks = op.block_ids[0][at * A_CHUNK : (at + 1) * A_CHUNK]
            tier.held[rank, name] = [layer[blocks].clone() for layer in layers]

    def submit_retrieve(request: str, op: Any, event: object, **_: object) -> None:
        if rank in tier.away:
            adapter.error_block_ids.update(op.block_ids[0])
            adapter._dropped_retrieves.add(request)
            return
        whole = all((rank, name) in tier.held for name in names(op))
        for at, name in enumerate(names(op) if whole else ()):
            blocks = op.block_ids[0][at * A_CHUNK : (at + 1) * A_CHUNK]
            for layer, kept in zip(layers, tier.held[rank, name], strict=True):
                layer[blocks] = kept
        adapter.retrieve_futures[request] = (module.ended(whole), op.block_ids[0])

    adapter.submit_store_request.side_effect = submit_store
    adapter.submit_retrieve_request.side_effect = submit_retrieve
    return side


def metadata(direction: str, start: int, end: int, blocks: list[int], skip: int = 0) -> Any:
    from lmcache.integration.vllm.lmcache_mp_metadata import LMCacheMPConnectorMetadata, LMCacheMPRequestMetadata
    from lmcache.integration.vllm.vllm_multi_process_adapter import LoadStoreOp

    op = LoadStoreOp(
        token_ids=list(range(1, 8 * CHUNK + 18)),
        block_ids=[blocks],
        start=start * CHUNK,
        end=end * CHUNK,
        skip_first_n_tokens=skip,
    )
    moved = LMCacheMPConnectorMetadata()
    moved.add_request_metadata(LMCacheMPRequestMetadata("r", direction, op, "salt"))
    return moved


@pytest.fixture
def ranks(module: Any) -> Any:
    """Two ranks that have computed and stored a prompt of seven chunks: the same KV on both, as under latent attention."""
    import torch
    import torch.distributed as dist

    tier, store = Tier(), dist.HashStore()
    with ThreadPoolExecutor(WORLD) as pool:  # the groups meet while they are made
        sides = list(pool.map(lambda rank: worker_side(module, rank, tier, store), range(WORLD)))
    computed = list(range(10, 10 + 7 * A_CHUNK))
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn((len(computed), BLOCK, 6), generator=generator).to(torch.bfloat16) for _ in range(2)]
    for side in sides:
        for layer, value in zip(side.layers, values, strict=True):
            layer[computed] = value
        side._connector_metadata = metadata("STORE", 0, 7, computed)
        side.wait_for_save()
    return SimpleNamespace(sides=sides, tier=tier, values=values)


def load(ranks: Any, start: int, end: int, blocks: list[int], skip: int = 0) -> None:
    for side in ranks.sides:
        for layer in side.layers:
            layer.zero_()
        side._connector_metadata = metadata("RETRIEVE", start, end, blocks, skip)
    threads = [threading.Thread(target=side.start_load_kv, args=(None,)) for side in ranks.sides]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def whole(ranks: Any, side: Any, start: int, end: int, blocks: list[int]) -> bool:
    import torch

    return all(
        torch.equal(layer[blocks[: (end - start) * A_CHUNK]], value[start * A_CHUNK : end * A_CHUNK])
        for layer, value in zip(side.layers, ranks.values, strict=True)
    )


def test_each_rank_stores_only_its_own_chunks_and_together_they_store_all(ranks: Any) -> None:
    assert Counter(rank for rank, _ in ranks.tier.held) == {0: 4, 1: 3}
    told = [side.get_kv_connector_stats().data["rank_chunks"] for side in ranks.sides]
    assert told == [{"0/stored": 4}, {"1/stored": 3}]
    assert all(side.get_kv_connector_stats() is None for side in ranks.sides)


def test_both_ranks_get_the_whole_prefix_and_count_what_they_loaded_and_received(ranks: Any) -> None:
    blocks = list(range(30, 30 + 7 * A_CHUNK))
    load(ranks, 0, 7, blocks)
    for side in ranks.sides:
        assert whole(ranks, side, 0, 7, blocks)
        assert side.worker_adapter.error_block_ids == set()
        future, own = side.worker_adapter.retrieve_futures["r"]
        assert (future.result(0), own) == (True, [])  # LMCache's adapter reports the request once
    assert [dict(side._chunks_moved)["loaded"] for side in ranks.sides] == [4, 3]
    assert [dict(side._chunks_moved)["received"] for side in ranks.sides] == [3, 4]


def test_a_load_that_begins_in_the_middle_leaves_what_the_engine_has(ranks: Any) -> None:
    """The engine has three chunks and two blocks of the fourth, which rank 1 owns."""
    blocks = list(range(20, 20 + 4 * A_CHUNK))
    load(ranks, 3, 7, blocks, skip=2 * BLOCK)
    receiver = ranks.sides[0]
    assert all(not layer[blocks[:2]].any() for layer in receiver.layers)
    for layer, value in zip(receiver.layers, ranks.values, strict=True):
        assert (layer[blocks[2:]] == value[3 * A_CHUNK + 2 :]).all()
    asked = ranks.sides[1].worker_adapter.submit_retrieve_request.call_args.args[1]
    assert (asked.start, asked.end, asked.skip_first_n_tokens) == (CHUNK, 3 * CHUNK, 2 * BLOCK)
    asked = ranks.sides[0].worker_adapter.submit_retrieve_request.call_args.args[1]
    assert (asked.start, asked.end, asked.skip_first_n_tokens) == (2 * CHUNK, 4 * CHUNK, 0)


@pytest.mark.parametrize("fault", ["server lost", "chunk gone"])
def test_what_one_rank_cannot_load_ends_the_prefix_on_both(ranks: Any, fault: str) -> None:
    if fault == "server lost":
        ranks.tier.away.add(1)
    else:
        del ranks.tier.held[max((key for key in ranks.tier.held if key[0] == 1), key=lambda key: len(key[1]))]
    blocks = list(range(30, 30 + 7 * A_CHUNK))
    load(ranks, 0, 7, blocks)
    for side in ranks.sides:
        # LMCache loads all of a rank's chunks or none, so rank 1's first one ends it.
        assert whole(ranks, side, 0, 1, blocks)
        assert side.worker_adapter.error_block_ids == set(blocks[A_CHUNK:])
        assert side.worker_adapter._dropped_retrieves == set()
        assert "r" in side.worker_adapter.retrieve_futures
    ranks.tier.away.clear()
    load(ranks, 0, 1, blocks[:A_CHUNK])  # and the ranks still work together
    assert all(whole(ranks, side, 0, 1, blocks) for side in ranks.sides)


def test_vllm_finds_the_class_and_what_is_overridden_has_the_shape_that_vllm_calls(module: Any) -> None:
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    config = KVTransferConfig(
        kv_connector="ShardedTierConnector",
        kv_connector_module_path="prime_inference.kv.sharded_connector",
        kv_role="kv_both",
    )
    assert KVConnectorFactory.get_connector_class(config) is module.ShardedTierConnector
    names = [name for name, value in vars(module.ShardedTierConnector).items() if inspect.isfunction(value)]
    for name in [name for name in names if name[0] != "_"]:
        ours = inspect.signature(getattr(module.ShardedTierConnector, name)).parameters
        assert list(ours) == list(inspect.signature(getattr(KVConnectorBase_V1, name)).parameters), name


def test_under_prefill_context_parallelism_each_rank_is_alone_with_its_server(module: Any) -> None:
    """LMCache's own geometry has no such case: with as many servers as ranks it divides by zero."""
    from lmcache.integration.vllm.vllm_multi_process_adapter import ParallelStrategy

    theirs = ParallelStrategy(mla_only=True, vllm_world_size=4, vllm_worker_id=1, tp_size=1, pp_size=1, n_servers=4)
    with pytest.raises(ZeroDivisionError):
        assert theirs.is_kv_writer
    ours = module.ALONE
    assert (ours.is_kv_writer, ours.kv_world_size, ours.kv_worker_id, ours.num_kv_readers) == (True, 1, 0, 1)
    assert ours.kv_tp_size == 1
    # At two tensor-parallel ranks with a server each it is what LMCache makes of it itself.
    theirs = ParallelStrategy(mla_only=True, vllm_world_size=2, vllm_worker_id=1, tp_size=2, pp_size=1, n_servers=2)
    for name in ("is_kv_writer", "kv_world_size", "kv_worker_id", "num_kv_readers", "kv_tp_size"):
        assert getattr(theirs, name) == getattr(ours, name)


def test_eight_prefill_context_ranks_are_eight_ranks_with_one_list_of_blocks(module: Any) -> None:
    """GLM-5.3's layers (latent rows and the indexers' rows) on eight PCP ranks, by vLLM's own classes: they are one group,
    so a chunk has the same blocks in all layers, and a block of every rank holds as many tokens as one of a single rank."""
    import torch
    from vllm.config import ParallelConfig, VllmConfig
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups
    from vllm.v1.kv_cache_interface import MLAAttentionSpec

    parallel = ParallelConfig(prefill_context_parallel_size=8, enable_expert_parallel=True)
    assert (parallel.world_size, parallel.decode_context_parallel_size) == (8, 1)
    rows = {
        "latent": MLAAttentionSpec(
            block_size=BLOCK, num_kv_heads=1, head_size=576, dtype=torch.uint8, cache_dtype_str="fp8_ds_mla"
        ),
        "indexer": MLAAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=132, dtype=torch.uint8),
    }
    layers = {f"{name}.{n}": row for n in range(22) for name, row in rows.items()}
    config = VllmConfig()
    config.parallel_config = parallel
    groups = get_kv_cache_groups(config, layers)
    assert [len(group.layer_names) for group in groups] == [44]
    assert groups[0].kv_cache_spec.block_size == BLOCK


def test_the_scheduler_counts_a_blocks_tokens_once_whatever_the_prefill_context() -> None:
    """It is told of one prefill-context rank, where it divides blocks among decode-context ranks: that is what makes the
    KV the same on all of them, and each rank's block number the scheduler's."""
    from vllm.v1.core.sched import scheduler

    assert "pcp_world_size=1," in inspect.getsource(scheduler.Scheduler.__init__)


def test_every_prefill_context_rank_writes_the_rows_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own gather before the write into the cache, with two ranks played by one: rows and slots of both come out."""
    import torch
    from vllm.v1.attention.ops import pcp

    class Group:
        world_size = 2

        def all_gather(self, rows: Any, dim: int) -> Any:
            return torch.cat([rows, rows + 100], dim=dim)

    monkeypatch.setattr(pcp, "get_pcp_group", Group)
    own = torch.arange(6.0).reshape(3, 2)
    latent, position, slots = pcp.maybe_gather_mla_latent_cache_inputs(own, own + 10, torch.arange(6), 0, True)
    assert latent.tolist() == [*own.tolist(), *(own + 100).tolist()]
    assert position.tolist() == [*(own + 10).tolist(), *(own + 110).tolist()]
    assert slots is not None
    assert slots.tolist() == [0, 1, 2, 3, 4, 5]


def test_layers_in_several_groups_are_refused(module: Any) -> None:
    with pytest.raises(ValueError, match="moves one group of layers, this model has 2"):
        module.refuse_what_is_not_replicated(
            SimpleNamespace(
                parallel_config=SimpleNamespace(),
                model_config=SimpleNamespace(use_mla=True),
                kv_transfer_config=SimpleNamespace(
                    kv_connector_extra_config={"lmcache.mp.server_urls": ["tcp://a:1", "tcp://b:1"]}
                ),
            ),
            2,
            2,
        )


@pytest.mark.parametrize(
    ("parallel", "latent", "extra", "words"),
    [
        ({"pipeline_parallel_size": 2}, True, {}, "pipeline_parallel_size 1"),
        ({"decode_context_parallel_size": 2}, True, {}, "decode_context_parallel_size 1"),
        ({}, False, {}, "use TierConnector"),
        ({}, True, {"lmcache.mp.server_urls": "tcp://a:1"}, "names 1 servers for 2 ranks"),
        ({}, True, {"lmcache.mp.lazy_offload": True}, "lazy_offload"),
    ],
)
def test_what_is_not_replicated_is_refused_with_the_cure(
    module: Any, parallel: dict[str, int], latent: bool, extra: dict[str, object], words: str
) -> None:
    def config(world: int) -> Any:
        return SimpleNamespace(
            parallel_config=SimpleNamespace(**parallel),
            model_config=SimpleNamespace(use_mla=latent),
            kv_transfer_config=SimpleNamespace(
                kv_connector_extra_config={"lmcache.mp.server_urls": ["tcp://a:1", "tcp://b:1"], **extra}
            ),
        )

    with pytest.raises(ValueError, match=words):
        module.refuse_what_is_not_replicated(config(2), 2)
    module.refuse_what_is_not_replicated(config(1), 1)  # one rank is the tier connector
