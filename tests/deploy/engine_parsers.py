"""Reads command lines with the parsers of Dynamo, vLLM and LMCache, in a process of its own: importing vLLM takes a
minute and warns. Standard input: a JSON list of {kind, argv}; standard output: one JSON list, an answer each:
{"error": "..."} or what the parser understood."""

import json
import sys
from argparse import ArgumentParser
from typing import Any


def worker(argv: list[str]) -> dict[str, Any]:
    from dynamo.common.configuration.groups.runtime_args import resolve_structural_tag_config
    from dynamo.vllm.args import _parse_cli_args
    from dynamo.vllm.kv_connector_protocols import make_kv_connector_protocol
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    dynamo, engine = _parse_cli_args(argv)
    transfer = engine.kv_transfer_config
    if not isinstance(transfer, KVTransferConfig):
        transfer = KVTransferConfig(**json.loads(transfer))
    children = transfer.kv_connector_extra_config.get("connectors", [])
    configs = [transfer, *(KVTransferConfig(**child) for child in children)]
    connectors = [KVConnectorFactory.get_connector_class(config).__name__ for config in configs]
    # Dynamo's choice of who answers for the hand-over; it wants a little more of vLLM's configuration for a child.
    import copy
    import dataclasses

    @dataclasses.dataclass
    class Settings:
        kv_transfer_config: Any

    protocol = make_kv_connector_protocol(copy.copy(Settings(transfer)))
    mode = dynamo.disaggregation_mode
    if engine.prefill_context_parallel_size > 1:
        accept_prefill_context(engine)
    return {
        "mode": getattr(mode, "value", mode),
        "tensor": engine.tensor_parallel_size,
        "data": engine.data_parallel_size,
        "prefill_context": engine.prefill_context_parallel_size,
        "expert": engine.enable_expert_parallel,
        "kv_dtype": engine.kv_cache_dtype,
        "step_tokens": engine.max_num_batched_tokens,
        "connectors": connectors,
        "protocol": type(protocol).__name__,
        "parsers": [dynamo.dyn_tool_call_parser, dynamo.dyn_reasoning_parser, engine.reasoning_parser],
        "structural_tag": resolve_structural_tag_config(dynamo),
    }


def accept_prefill_context(engine: Any) -> None:
    """vLLM's own check of prefill context parallelism, which it makes when the model runner starts, for a model of sparse
    latent attention as GLM-5.3 is. Raises what vLLM raises."""
    from types import SimpleNamespace

    from vllm.config import CUDAGraphMode
    from vllm.v1.worker.gpu.pcp_manager import PCPManager

    mode = engine.compilation_config.cudagraph_mode
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(
            prefill_context_parallel_size=engine.prefill_context_parallel_size,
            decode_context_parallel_size=engine.decode_context_parallel_size,
            pipeline_parallel_size=engine.pipeline_parallel_size,
            dcp_comm_backend=engine.dcp_comm_backend,
        ),
        model_config=SimpleNamespace(
            use_mla=True, is_encoder_decoder=False, hf_text_config=SimpleNamespace(index_topk=2048)
        ),
        lora_config=None,
        speculative_config=None,
        # What vLLM takes when nothing is said.
        compilation_config=SimpleNamespace(cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE if mode is None else mode),
    )
    PCPManager.validate_config(config, supports_mm_inputs=False)


def frontend(argv: list[str]) -> dict[str, Any]:
    from dynamo.frontend.frontend_args import FrontendArgGroup, FrontendConfig
    from dynamo.llm import KvRouterConfig

    parser = ArgumentParser(allow_abbrev=False)
    FrontendArgGroup().add_arguments(parser)
    parsed = parser.parse_args(argv)
    config = FrontendConfig.from_cli_args(parsed)
    config.validate()
    # The Rust router reads the policy file here.
    KvRouterConfig(**config.kv_router_kwargs())
    return {"router": config.router_mode}


def lmcache(argv: list[str]) -> dict[str, Any]:
    from lmcache.cli.commands.server import ServerCommand
    from lmcache.v1.distributed.config import parse_args_to_config

    parser = ArgumentParser(allow_abbrev=False)
    ServerCommand().add_arguments(parser)
    parsed = parser.parse_args(argv)
    parse_args_to_config(parsed)
    return {"chunk": parsed.chunk_size}


def mooncake_configuration(argv: list[str]) -> dict[str, Any]:
    from vllm.distributed.mooncake_store import MooncakeStoreConfig

    config = MooncakeStoreConfig.from_file(argv[0])
    return {"master": config.master_server_address, "protocol": config.protocol, "mode": config.mode}


def bare(*packages: str) -> None:
    """Packages without their `__init__`: the planner's own imports its performance models, which need packages that only
    NVIDIA's planner image has. What is read below is the planner's configuration and its reading of a graph, as pinned."""
    import importlib.util
    import types

    for name in packages:
        spec = importlib.util.find_spec(name.rpartition(".")[0])
        if name not in sys.modules and spec is not None:
            module = types.ModuleType(name)
            last = name.rpartition(".")[2]
            module.__path__ = [f"{folder}/{last}" for folder in spec.submodule_search_locations or []]
            sys.modules[name] = module


def planner(argv: list[str]) -> dict[str, Any]:
    bare("dynamo.planner")
    from dynamo.planner.config.planner_config import PlannerConfig

    config = PlannerConfig.from_config_arg(argv[0])
    # It would ignore a key that it does not know.
    with open(argv[0], encoding="utf-8") as file:
        unknown = set(json.load(file)) - set(PlannerConfig.model_fields)
    if unknown:
        raise ValueError(f"no such keys: {', '.join(sorted(unknown))}")
    return {
        "target": config.optimization_target,
        "gpus": config.max_gpu_budget,
        "prefill_gpus": config.prefill_engine_num_gpu,
        "decode_gpus": config.decode_engine_num_gpu,
        "least": [config.effective_prefill_min_endpoint, config.effective_decode_min_endpoint],
    }


def planner_roles(argv: list[str]) -> dict[str, Any]:
    bare("dynamo.planner")
    from dynamo.planner.config.defaults import SubComponentType
    from dynamo.planner.monitoring.dgd_services import get_component_from_type_or_name

    graph = json.loads(argv[0])
    found = {role: get_component_from_type_or_name(graph, SubComponentType(role)) for role in ("prefill", "decode")}
    return {role: [component.name, component.number_replicas()] for role, component in found.items()}


def router_policy(argv: list[str]) -> dict[str, Any]:
    return frontend(["--router-mode", "kv", "--router-policy-config", argv[0]])


def kv_choices(argv: list[str]) -> dict[str, Any]:
    """Which of the layouts vLLM does not take, and its names of KV dtypes."""
    import os
    from typing import get_args

    from vllm import envs
    from vllm.config.cache import CacheDType

    refused = []
    for layout in argv:
        os.environ["VLLM_KV_CACHE_LAYOUT"] = layout
        try:
            envs.environment_variables["VLLM_KV_CACHE_LAYOUT"]()
        except ValueError:
            refused.append(layout)
    del os.environ["VLLM_KV_CACHE_LAYOUT"]
    return {"refused": refused, "dtypes": list(get_args(CacheDType))}


READERS = {
    f.__name__: f
    for f in (worker, frontend, lmcache, mooncake_configuration, router_policy, planner, planner_roles, kv_choices)
}


def answer(item: dict[str, Any]) -> dict[str, Any]:
    try:
        return READERS[item["kind"]](item["argv"])
    except SystemExit as error:
        return {"error": f"refused by the parser ({error.code})"}
    except Exception as error:  # noqa: BLE001 - whatever a parser raises is its answer
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    items = json.load(sys.stdin)
    answers = [answer(item) for item in items]
    print("ANSWERS" + json.dumps(answers))


if __name__ == "__main__":
    main()
