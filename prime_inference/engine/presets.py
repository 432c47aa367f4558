"""Arguments of a `dynamo.vllm` worker by role and device: pure."""

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from prime_inference.engine.cpu_dispatch import DECODE_VARIABLE
from prime_inference.engine.cpu_norm import KERNEL_CONFIG
from prime_inference.engine.tier import TierPlan, with_tier
from prime_inference.engine.tool_settings import Parsing, tool_arguments

CPU_BLOCK_TOKENS = 32
"""vLLM's CPU attention takes multiples of 32; the smallest shares the most of a prefix."""

CPU_MAX_SEQUENCES = 16
"""What two cores can decode at a speed a person can read."""

CPU_KV_CACHE_GIB = 1
"""45,000 tokens of SmolLM2; the stack must fit a laptop."""

MAX_CPU_THREADS = 4
"""A guess for machines of more cores than ours (two): past the memory's bandwidth threads only wait for each other."""


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True)
class WorkerPlan:
    """One worker as the stack wants it."""

    role: Role
    model_path: str
    model_name: str
    context_tokens: int | None
    on_gpu: bool
    gpu_memory_share: float
    kv_events_port: int
    ranks: int = 1
    """Tensor parallel."""
    tier: TierPlan | None = None
    """Of a prefill worker only: a decode worker gets its KV from there."""
    parsing: Parsing = Parsing.NONE
    thinks: bool = False


def worker_arguments(plan: WorkerPlan) -> list[str]:
    """The command line after `python -m prime_inference.engine.worker`."""
    arguments = [
        *("--model", plan.model_path),
        *("--served-model-name", plan.model_name),
        *("--disaggregation-mode", plan.role.value),
        *("--kv-transfer-config", json.dumps(transfer_config(plan))),
        *tool_arguments(plan.parsing, thinks=plan.thinks),
    ]
    if plan.ranks > 1:
        arguments += ["--tensor-parallel-size", str(plan.ranks)]
    if plan.context_tokens is not None:
        arguments += ["--max-model-len", str(plan.context_tokens)]
    if plan.role is Role.PREFILL:
        arguments += ["--kv-events-config", json.dumps(events_config(plan.kv_events_port))]
    if plan.on_gpu:
        arguments += ["--gpu-memory-utilization", str(plan.gpu_memory_share)]
    else:
        arguments += [
            *("--dtype", "bfloat16"),
            # Compiling graphs took 102 s on two cores, and a token was no faster: it waits for memory.
            "--enforce-eager",
            *("--max-num-seqs", str(CPU_MAX_SEQUENCES)),
            *("--block-size", str(CPU_BLOCK_TOKENS)),
            *("--kernel-config", json.dumps(KERNEL_CONFIG)),
        ]
    return arguments


def transfer_config(plan: WorkerPlan) -> dict[str, Any]:
    """NIXL between prefill and decode: vLLM 0.31 deprecates `kv_both`, so each role says what it is."""
    config: dict[str, Any] = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_producer" if plan.role is Role.PREFILL else "kv_consumer",
    }
    if not plan.on_gpu:
        config["kv_buffer_device"] = "cpu"
        # One UCX thread a worker is enough for memory-to-memory copies; four more would fight for two cores.
        config["kv_connector_extra_config"] = {"num_threads": 0}
    return config if plan.tier is None else with_tier(config, plan.tier, on_gpu=plan.on_gpu)


def events_config(port: int) -> dict[str, Any]:
    """What the router learns cached prefixes from. vLLM publishes none unless asked to."""
    return {
        "publisher": "zmq",
        "topic": "kv-events",
        "endpoint": f"tcp://*:{port}",
        "enable_kv_cache_events": True,
    }


def cpu_threads(role: Role, cores: int) -> int:
    """OpenMP threads of one CPU engine, at most `MAX_CPU_THREADS`.

    Decode takes every core: a token reads all the weights, and one core alone cannot draw what memory gives. Prefill
    takes half, so that a long prompt leaves decode a core.
    """
    share = cores if role is Role.DECODE else cores // 2
    return max(1, min(share, MAX_CPU_THREADS))


def worker_environment(
    role: Role, *, on_gpu: bool, gpu: str | None, side_channel_port: int, system_port: int, cores: int
) -> dict[str, str]:
    environment = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel_port),
        "DYN_SYSTEM_PORT": str(system_port),
        # The frontend reads the model's files from this disk, not over HTTP from the worker.
        "DYN_SELF_HOST_METADATA": "0",
        "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": "0",
        "VLLM_NO_USAGE_STATS": "1",
        # Equal on every worker, so that equal prefixes have equal block hashes.
        "PYTHONHASHSEED": "0",
    }
    if on_gpu:
        environment["CUDA_VISIBLE_DEVICES"] = gpu or ""
        # A GPU host has cores to spare for a polling thread, and posting latency counts there.
        environment["PRIME_NIXL_PROGRESS_SLEEP_US"] = "0"
    else:
        environment |= {
            "CUDA_VISIBLE_DEVICES": "",
            "VLLM_CPU_KVCACHE_SPACE": str(CPU_KV_CACHE_GIB),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "OMP_NUM_THREADS": str(cpu_threads(role, cores)),
            DECODE_VARIABLE: "1" if role is Role.DECODE else "0",
        }
    return environment
