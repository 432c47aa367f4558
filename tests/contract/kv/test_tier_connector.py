"""The tier connector over vLLM's and LMCache's real classes. Only LMCache's connection to its server is a stand-in,
with the real class's signatures; benchmarks/kv_tiers/run_tier_connector.py has a real server and a real engine."""

import inspect
import warnings
from collections.abc import Callable
from time import sleep
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pytest

EXTRA = {
    "prime.gate.bytes_per_s": 10e9,
    "prime.gate.prefill_tokens_per_s": 53_000,
    "prime.salt": "required",
    "lmcache.mp.port": 1,
}
PROMPT = 4_097


@pytest.fixture(scope="module")
def module() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch, vLLM and LMCache warn of their own parts at import
        from prime_inference.kv import connector
    return connector


def scheduler_side(module: Any, **extra: object) -> Any:
    from lmcache.integration.vllm.vllm_multi_process_adapter import LMCacheMPSchedulerAdapter
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    side = module.TierConnector.__new__(module.TierConnector)
    side._begin({**EXTRA, **extra}, bytes_per_token=48_408)
    side._role = KVConnectorRole.SCHEDULER
    side._eager_prefetch = side.lazy_offload = False
    side.request_trackers = {}
    side._hit_alignment_tokens = 16
    side._group_tokens_per_block = [16]
    side.scheduler_adapter = create_autospec(LMCacheMPSchedulerAdapter, instance=True)
    side.scheduler_adapter.lmcache_tokens_per_chunk = 256
    side.scheduler_adapter.check_lookup_result.return_value = None
    return side


def request_of(tokens: int = PROMPT, name: str = "r", salt: str | None = "tenant") -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    return Request(name, list(range(tokens)), SamplingParams(max_tokens=1), None, cache_salt=salt)


def blocks_of(count: int) -> Any:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks

    blocks = create_autospec(KVCacheBlocks, instance=True)
    blocks.get_block_ids.return_value = (list(range(count)),)
    return blocks


def until(what: Callable[[], bool]) -> None:
    """`time.monotonic` may be the test's own."""
    for _ in range(500):
        if what():
            return
        sleep(0.01)
    raise AssertionError("not within 5 s")


def test_vllm_finds_the_class_by_its_module_path(module: Any) -> None:
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    config = KVTransferConfig(
        kv_connector="TierConnector", kv_connector_module_path="prime_inference.kv.connector", kv_role="kv_both"
    )
    assert KVConnectorFactory.get_connector_class(config) is module.TierConnector
    assert KVConnectorFactory.supports_hma_config(config)


def test_what_is_overridden_still_has_the_shape_that_vllm_calls(module: Any) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    overridden = [
        name for name, value in vars(module.TierConnector).items() if inspect.isfunction(value) and name[0] != "_"
    ]
    assert len(overridden) == 7
    for name in overridden:
        ours = inspect.signature(getattr(module.TierConnector, name)).parameters
        theirs = inspect.signature(getattr(KVConnectorBase_V1, name)).parameters
        assert list(ours) == list(theirs), name


def test_a_prompt_that_the_engine_holds_is_not_looked_up(module: Any) -> None:
    side = scheduler_side(module)
    request = request_of()
    assert side.get_num_new_matched_tokens(request, 4_096) == (0, False)
    side.update_state_after_alloc(request, blocks_of(257), 0)
    side.scheduler_adapter.maybe_submit_lookup_request.assert_not_called()
    tracker = side.request_trackers["r"]
    assert tracker.num_stored_tokens == 4_096  # and is not stored again


def test_a_hit_goes_through_lmcaches_own_states_and_is_measured(module: Any) -> None:
    from lmcache.integration.vllm.lmcache_mp_metadata import LMCacheMPRequestState
    from vllm.v1.outputs import KVConnectorOutput

    side = scheduler_side(module)
    request = request_of()
    assert side.get_num_new_matched_tokens(request, 0) == (None, True)
    submitted = side.scheduler_adapter.maybe_submit_lookup_request.call_args_list[0]
    assert len(submitted.kwargs["token_ids"]) == 4_096
    side.scheduler_adapter.check_lookup_result.return_value = 4_096
    until(lambda: bool(side._lookups._answers))
    assert side.get_num_new_matched_tokens(request, 0) == (4_096, True)
    side.update_state_after_alloc(request, blocks_of(256), 4_096)
    assert side.request_trackers["r"].state is LMCacheMPRequestState.WAITING_FOR_LOAD
    side.update_connector_output(KVConnectorOutput(finished_recving={"r"}))
    assert side._plans.ends == {"loaded": 1}
    assert side._plans.gate.tiers["tier"].in_flight == 0


def test_asking_again_before_there_are_blocks_does_not_count_the_hit_twice(module: Any) -> None:
    """LMCache #4508: tokens counted as stored that are not leave a hole in the prefix."""
    side = scheduler_side(module)
    request = request_of()
    side.scheduler_adapter.check_lookup_result.return_value = 2_048
    for _ in range(3):
        assert side.get_num_new_matched_tokens(request, 0) == (2_048, True)
    assert side.request_trackers["r"].num_stored_tokens == 2_048


def test_a_slow_tier_is_not_asked(module: Any) -> None:
    side = scheduler_side(module, **{"prime.gate.bytes_per_s": 0.5e9})
    assert side.get_num_new_matched_tokens(request_of(), 0) == (0, False)
    side.scheduler_adapter.maybe_submit_lookup_request.assert_not_called()


def test_a_late_lookup_is_given_up_and_its_locks_are_released_when_it_is_answered(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lmcache.integration.vllm.lmcache_mp_metadata import LMCacheMPRequestState
    from vllm.v1.core.sched.output import SchedulerOutput

    side = scheduler_side(module)
    request = request_of()
    clock = module.time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: clock)
    assert side.get_num_new_matched_tokens(request, 0) == (None, True)
    clock += 5.0
    assert side.get_num_new_matched_tokens(request, 0) == (0, False)
    assert side.get_num_new_matched_tokens(request, 0) == (0, False)  # vLLM may ask again before it has blocks
    side.update_state_after_alloc(request, blocks_of(257), 0)
    assert side.request_trackers["r"].state is LMCacheMPRequestState.READY
    side.scheduler_adapter.cleanup_lookup_result.assert_not_called()
    side.build_connector_meta(SchedulerOutput.make_empty())
    side.scheduler_adapter.free_lookup_locks.assert_not_called()

    side.scheduler_adapter.check_lookup_result.return_value = 1_024
    clock += 1.0  # so that it is asked after again
    until(lambda: bool(side._lookups._answers))
    side.build_connector_meta(SchedulerOutput.make_empty())
    freed = side.scheduler_adapter.free_lookup_locks.call_args.kwargs
    assert (freed["start"], freed["end"], freed["request_id"]) == (0, 1_024, "r")
    side.scheduler_adapter.cleanup_lookup_result.assert_called_once_with("r")
    side.build_connector_meta(SchedulerOutput.make_empty())
    assert side.scheduler_adapter.free_lookup_locks.call_count == 1
    assert side._plans.ends == {"late": 1}


def test_an_answer_that_is_there_when_its_deadline_has_passed_in_a_long_step_is_taken(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = scheduler_side(module)
    clock = module.time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: clock)
    request = request_of()
    assert side.get_num_new_matched_tokens(request, 0) == (None, True)
    side.scheduler_adapter.check_lookup_result.return_value = 4_096
    until(lambda: bool(side._lookups._answers))
    clock += 5.0
    assert side.get_num_new_matched_tokens(request, 0) == (4_096, True)
    assert side._plans.ends == {}


def test_the_gate_learns_from_an_answer_that_came_while_the_prompt_was_computed(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.request import RequestStatus

    side = scheduler_side(module, **{"prime.gate.bytes_per_s": 1e9})
    tier = side._plans.gate.tiers["tier"]
    clock = module.time.monotonic() + 20.0  # long enough without a load for a probe
    monkeypatch.setattr(module.time, "monotonic", lambda: clock)
    request = request_of()
    assert side.get_num_new_matched_tokens(request, 0) == (None, True)
    clock += 0.012
    assert side.get_num_new_matched_tokens(request, 0) == (0, False)
    side.update_state_after_alloc(request, blocks_of(257), 0)
    assert tier.bytes_per_s == 1e9
    side.scheduler_adapter.check_lookup_result.return_value = 256
    clock += 0.0005  # so that it is asked after again
    until(lambda: bool(side._lookups._answers))
    clock += 3.0  # the step of the model
    request.status = RequestStatus.FINISHED_LENGTH_CAPPED
    side.request_finished(request, [])
    assert tier.bytes_per_s > 1.5e9  # 12 ms, not 3 s
    side.scheduler_adapter.free_lookup_locks.assert_called_once()


def test_a_prefill_workers_prompt_of_one_step_says_how_fast_the_engine_is(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import RequestStatus

    side = scheduler_side(module)
    prefill = side._plans.gate.prefill
    clock = module.time.monotonic()
    monkeypatch.setattr(module.time, "monotonic", lambda: clock)
    ends = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_ABORTED)
    for number, status in enumerate(ends):
        told, request = prefill.tokens_per_s, request_of(name=f"r{number}")
        step = SchedulerOutput.make_empty()
        step.num_scheduled_tokens = {request.request_id: 2_000}
        side._observe_step(step, clock)
        side._observe_step(SchedulerOutput.make_empty(), clock + 0.5)  # asked for more while the step runs
        clock += 1.0
        request.status = status
        side.request_finished(request, [])
        side.request_finished(request, [])  # a second that ends with the same step
        aborted = status is RequestStatus.FINISHED_ABORTED
        assert prefill.tokens_per_s == (told if aborted else pytest.approx(told + 0.2 * (2_000 - told)))


def test_a_failed_copy_is_counted_and_says_nothing_about_bandwidth(module: Any) -> None:
    from vllm.v1.outputs import KVConnectorOutput

    side = scheduler_side(module)
    request = request_of()
    side.scheduler_adapter.check_lookup_result.return_value = 4_096
    side.get_num_new_matched_tokens(request, 0)
    side.update_state_after_alloc(request, blocks_of(256), 4_096)
    side.update_connector_output(KVConnectorOutput(finished_recving={"r"}, invalid_block_ids={3}))
    assert side._plans.ends == {"failed": 1}
    assert side._plans.gate.tiers["tier"].bytes_per_s == 10e9


def test_decisions_and_loads_reach_vllms_log_and_its_metrics_page_once(module: Any) -> None:
    import prometheus_client
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorLogging, KVConnectorProm
    from vllm.v1.outputs import KVConnectorOutput

    config = KVTransferConfig(
        kv_connector="TierConnector", kv_connector_module_path="prime_inference.kv.connector", kv_role="kv_both"
    )
    page = KVConnectorProm(SimpleNamespace(kv_transfer_config=config), ["model_name", "engine"], {0: ["m", "0"]})
    line: list[str] = []
    logged = KVConnectorLogging(config)
    side = scheduler_side(module)
    side.scheduler_adapter.check_lookup_result.return_value = 4_096
    for name in ("one", "two"):
        request = request_of(name=name)
        side.get_num_new_matched_tokens(request, 0)
        side.update_state_after_alloc(request, blocks_of(256), 4_096)
        side.update_connector_output(KVConnectorOutput(finished_recving={name}))
        side.get_num_new_matched_tokens(request_of(name=f"{name} again"), 4_096)
        stats = side.get_kv_connector_stats()
        assert not stats.is_empty()
        page.observe(stats.to_dict())
        logged.observe(stats.to_dict())
    assert side.get_kv_connector_stats().is_empty()
    logged.log(lambda form, *values: line.append(form % values))
    assert "take_all/faster=2, recompute/no_hit=2, loaded=2, loaded tokens=8192" in line[0]

    def value(name: str, **labels: str) -> float | None:
        return prometheus_client.REGISTRY.get_sample_value(name, {"model_name": "m", "engine": "0", **labels})

    assert value("vllm:prime_kv_gate_decisions_total", choice="take_all", reason="faster") == 2
    assert value("vllm:prime_kv_gate_decisions_total", choice="recompute", reason="no_hit") == 2
    assert value("vllm:prime_kv_loads_total", end="loaded") == 2
    assert value("vllm:prime_kv_loaded_tokens_total") == 8_192
    assert value("vllm:prime_kv_load_seconds_count") == 2
    assert value("vllm:prime_kv_gate_bytes_per_second") == side._plans.gate.tiers["tier"].bytes_per_s
    assert value("vllm:prime_kv_gate_prefill_tokens_per_second") == 53_000


def test_a_request_without_a_salt_neither_loads_nor_stores_unless_prefixes_are_shared(module: Any) -> None:
    side = scheduler_side(module)
    request = request_of(salt=None)
    assert side.get_num_new_matched_tokens(request, 0) == (0, False)
    side.scheduler_adapter.maybe_submit_lookup_request.assert_not_called()
    assert side.request_trackers["r"].num_stored_tokens > PROMPT
    shared = scheduler_side(module, **{"prime.salt": "shared"})
    assert shared.get_num_new_matched_tokens(request_of(salt=None), 0) == (None, True)


def test_a_salt_that_lmcache_would_choke_on_reaches_it_as_a_digest(module: Any) -> None:
    from lmcache.v1.distributed.api import ObjectKey

    salts = []
    for salt in ("tenant", "a@b", "a/b", "x" * 500):
        side = scheduler_side(module)
        side.get_num_new_matched_tokens(request_of(salt=salt), 0)
        salts.append(side.scheduler_adapter.maybe_submit_lookup_request.call_args_list[0].kwargs["cache_salt"])
        ObjectKey(chunk_hash=b"h", model_name="m", kv_rank=0, cache_salt=salts[-1])  # raises for a bad one
    assert salts[0] == "tenant"
    assert len(set(salts)) == 4


def test_who_has_not_said_whose_prefixes_they_are_does_not_start(module: Any) -> None:
    for value in (None, True, "yes"):
        with pytest.raises(ValueError, match=r"prime\.salt must be required .* or shared"):
            scheduler_side(module, **{"prime.salt": value})


def test_beside_nixl_its_counters_find_their_way_by_name(module: Any) -> None:
    """vLLM's MultiConnector rebuilds a child's counters from a plain dictionary and the class's registered name."""
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

    from prime_inference.engine.plugin import name_tier_connectors

    for _ in range(2):  # vLLM calls plugins more than once
        name_tier_connectors()
    told = {**module.TierStats().data, "ends": {"loaded": 1}, "loaded_tokens": 256, "load_seconds": [0.1]}
    stats = MultiConnector.build_kv_connector_stats({"TierConnector": told})
    assert stats is not None
    assert isinstance(stats["TierConnector"], module.TierStats)
    assert stats["TierConnector"].data["loaded_tokens"] == 256


def test_each_rank_watches_the_server_that_lmcache_gave_it(module: Any) -> None:
    def url_of(rank: int, world: int, **extra: object) -> str:
        strategy = SimpleNamespace(vllm_worker_id=rank, vllm_world_size=world)
        url: str = module.server_of_rank(extra, SimpleNamespace(parallel_strategy=strategy))
        return url

    urls = {"lmcache.mp.server_urls": "tcp://a:1, tcp://b:1"}
    assert [url_of(rank, 4, **urls) for rank in range(4)] == ["tcp://a:1", "tcp://a:1", "tcp://b:1", "tcp://b:1"]
    assert url_of(0, 1, **{"lmcache.mp.host": "tcp://h", "lmcache.mp.port": 7}) == "tcp://h:7"
    assert url_of(0, 1) == "tcp://localhost:5555"  # LMCache's own defaults


def test_a_finished_request_leaves_nothing_behind(module: Any) -> None:
    side = scheduler_side(module)
    request = request_of()
    side.get_num_new_matched_tokens(request, 0)
    side.request_finished(request, [])
    assert side._plans.gate.tiers["tier"].in_flight == 0
    assert side.request_trackers == {}
    assert side._plans.ends == {"not_used": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prime.gate.bandwidth": 1.0}, "unknown key prime.gate.bandwidth; allowed: bytes_per_s"),
        ({"prime.gate.bytes_per_s": 0}, "bytes_per_s must be a positive number"),
        ({"prime.gate.margin": "0.1"}, "margin must be a positive number"),
    ],
)
def test_a_bad_setting_stops_the_start_by_name(module: Any, change: dict[str, Any], message: str) -> None:
    from prime_inference.kv.gated import build_plans

    with pytest.raises(ValueError, match=message):
        build_plans({**EXTRA, **change}, 48_408, now=0.0)


def test_a_key_of_ours_that_nobody_reads_stops_the_start(module: Any) -> None:
    with pytest.raises(ValueError, match=r"unknown key prime\.server\.answer_s"):
        scheduler_side(module, **{"prime.server.answer_s": 1.0})
    with pytest.raises(ValueError, match="answer_within_s must be a positive number"):
        scheduler_side(module, **{"prime.server.answer_within_s": 0})


def test_a_missing_setting_says_where_it_comes_from(module: Any) -> None:
    from prime_inference.kv.gated import build_plans

    with pytest.raises(ValueError, match="prefill_tokens_per_s is missing: give what the start-up check measured"):
        build_plans({"prime.gate.bytes_per_s": 1.0}, 48_408, now=0.0)
