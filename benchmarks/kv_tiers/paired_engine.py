"""One arm of the paired measurement (paired.py): a vLLM engine on the CPU in a process of its own, asked for first tokens."""

import argparse
import json
import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.kv_tiers.engine_process import EngineProcess
from benchmarks.kv_tiers.run_tier_connector import environment
from prime_inference.engine.tier import CPU_ESTIMATES, CPU_PATIENCE

CONTEXT_TOKENS = 2048


class ArmName(StrEnum):
    COMPUTE = "compute"
    """No tier: every prompt is computed."""
    ALWAYS = "always"
    """LMCache's own vLLM connector: everything that the tier has is loaded."""
    GATE = "gate"
    """The tier connector as `up` sets it on a CPU."""


def transfer_of(arm: ArmName, server_port: int) -> dict[str, Any] | None:
    """vLLM's `kv_transfer_config`."""
    if arm is ArmName.COMPUTE:
        return None
    server = {"lmcache.mp.server_urls": [f"tcp://127.0.0.1:{server_port}"]}
    common = {"kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    if arm is ArmName.ALWAYS:
        return common | {"kv_connector": "LMCacheMPConnector", "kv_connector_extra_config": server}
    return common | {
        "kv_connector": "TierConnector",
        "kv_connector_module_path": "prime_inference.kv.connector",
        "kv_connector_extra_config": {**server, "prime.salt": "shared", **CPU_ESTIMATES, **CPU_PATIENCE},
    }


class ArmEngine(EngineProcess):
    def __init__(self, arm: ArmName, model: Path, server_port: int, log: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.kv_tiers.paired_engine", "--model", str(model)]
        command += ["--arm", arm, "--server-port", str(server_port)]
        super().__init__(command, environment(), log)

    def first_token(self, tokens: list[int]) -> dict[str, Any]:
        """`seconds` to the first token, `cached_tokens`, the `token`, and the gate's counters and gauges so far (`page`)."""
        return self.put({"tokens": tokens})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--arm", type=ArmName, required=True)
    parser.add_argument("--server-port", type=int, required=True)
    options = parser.parse_args()
    from vllm import LLM, SamplingParams  # noqa: PLC0415  # only this process needs vLLM
    from vllm.config import KVTransferConfig  # noqa: PLC0415

    transfer = transfer_of(options.arm, options.server_port)
    engine = LLM(
        model=options.model,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=CONTEXT_TOKENS,
        max_num_seqs=4,
        disable_log_stats=False,
        kv_transfer_config=None if transfer is None else KVTransferConfig(**transfer),
    )
    params = SamplingParams(max_tokens=1, temperature=0.0)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        question: Mapping[str, Any] = json.loads(line)
        began = time.perf_counter()
        (output,) = engine.generate({"prompt_token_ids": question["tokens"]}, params, use_tqdm=False)
        seconds = time.perf_counter() - began
        page = {
            "/".join([metric.name.removeprefix("vllm:prime_kv_"), *labels_of(metric.labels)]): metric.value
            for metric in engine.get_metrics()
            if metric.name.startswith("vllm:prime_kv_") and hasattr(metric, "value")
        }
        answer = {
            "seconds": seconds,
            "cached_tokens": output.num_cached_tokens,
            "token": output.outputs[0].token_ids[0],
            "page": page,
        }
        print(json.dumps(answer), flush=True)


def labels_of(labels: Mapping[str, str]) -> list[str]:
    return [value for name, value in labels.items() if name not in ("model_name", "engine")]


if __name__ == "__main__":
    main()
