"""What a change did to the CPU time of a request: the gateway of two source trees, turn by turn, in one run.

    git worktree add ../before COMMIT
    python -m benchmarks.gateway.compare --before ../before --out benchmarks/results/<date>-gateway-compare/result.json

Both run beside each other on core 0, the load and the upstream on core 1. A turn is a fraction of a second of one of them,
then of the other; the ratio is taken within such a pair, and the median of all pairs counts, so that it holds on a machine
that others use, too. CPU time is the scheduler's, in nanoseconds, of all threads of the gateway: its background work counts.

    lone      one connection, back to back: each request comes alone
    streams   128 streams at a few thousand events a second: most events come alone, unless others have the core; opening
              the streams is in it, too
    events    24 streams of which each sends its next event when the last has arrived (lockstep.py): every event comes
              alone, whoever has the core; opening the streams is not in it
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.gateway import targets
from benchmarks.gateway.build import build
from benchmarks.gateway.lockstep import Lockstep, lockstep
from benchmarks.gateway.machine import LOAD_CORE, TARGET_CORE
from benchmarks.gateway.targets import Target
from benchmarks.provenance import ROOT, provenance, write
from prime_inference.local.ports import free_ports

PACKAGES = ["httptools", "msgspec", "redis", "uvicorn", "uvloop"]
PATH = "/api/v1/chat/completions"
KINDS: dict[str, list[str]] = {
    "lone": ["closed", "1", "0", "0.3"],
    "streams": ["streams", "128", "1", "1", "4000", "64", "0"],
}
"""The load generator's mode, connections, warm-up and measured seconds, and what its mode wants beside."""

EVENTS = "events"
EVENTS_A_TURN = 4000

LONGEST_TURN_S = 60.0
"""A load that has not ended by then has a gateway that does not accept."""

LEAST_UNITS = 20
"""A turn in which the machine hardly let it run says nothing."""


@contextmanager
def gateway(tree: Path, behind: Target, name: str) -> Iterator[Target]:
    port, second, valkey_port = free_ports(3)
    settings = targets.gateway_settings(targets.GATEWAY, f"http://127.0.0.1:{behind.port}", valkey_port)
    settings |= {"PORT": str(port), "INTERNAL_PORT": str(second)}
    environment = {f"PRIME_GATEWAY_{key}": value for key, value in settings.items()} | {"PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "prime_inference", "gateway"]
    with (
        targets.process(f"valkey-{name}", LOAD_CORE, targets.valkey_command(valkey_port), {}),
        targets.process(name, TARGET_CORE, command, environment, tree) as pid,
    ):
        targets.wait_for(f"http://127.0.0.1:{port}/readyz", name)
        yield Target(name, port, PATH, pid, behind.port)


def cpu_ns(pid: int) -> int:
    return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def turn(target: Target, kind: str) -> dict[str, float]:
    """`units` (requests, or events) and the CPU microseconds each took."""
    mode, connections, *rest = KINDS[kind]
    load = [str(build("load")), mode, target.address, target.path, targets.KEY, connections, *rest]
    before = cpu_ns(target.pid)
    done = subprocess.run(
        ["taskset", "-c", str(LOAD_CORE), *load], check=True, capture_output=True, timeout=LONGEST_TURN_S
    )
    used = cpu_ns(target.pid) - before
    told = json.loads(done.stdout)
    units = told["ok"] if kind == "lone" else told["events"]
    return {"units": units, "cpu_us": round(used / 1000 / max(1, units), 1)}


def turn_of_events(target: Target, through: Lockstep) -> dict[str, float]:
    """As `turn`, the streams open already when the clock starts."""
    marks: list[int] = []
    units = through.run(target, EVENTS_A_TURN, lambda: marks.append(cpu_ns(target.pid)))
    return {"units": units, "cpu_us": round((marks[1] - marks[0]) / 1000 / units, 1)}


def ratio_of(pairs: list[tuple[dict[str, float], dict[str, float]]]) -> dict[str, float | int | None]:
    """After to before, by pair: median and quartiles; `pairs` is how many counted."""
    counted = [(old, new) for old, new in pairs if min(old["units"], new["units"]) >= LEAST_UNITS]
    if len(counted) < 2:
        return {"pairs": len(counted), "ratio": None, "lower": None, "upper": None}
    lower, middle, upper = quantiles([new["cpu_us"] / old["cpu_us"] for old, new in counted], n=4)
    return {"pairs": len(counted), "ratio": round(middle, 3), "lower": round(lower, 3), "upper": round(upper, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="a source tree")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=40)
    options = parser.parse_args()
    before: Path = options.before.resolve()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=before, check=False, capture_output=True, text=True)
    about = provenance(PACKAGES, [*(ROOT / "gateway").rglob("*.py"), Path(__file__)])
    about["command"] = about["command"].replace(str(options.before), "BEFORE")
    about["before"] = commit.stdout.strip()
    os.sched_setaffinity(0, {LOAD_CORE})
    samples: dict[str, Any] = {}
    with ExitStack() as stack:
        direct = stack.enter_context(targets.upstream())
        step = stack.enter_context(lockstep())
        stepping = replace(direct, port=step.port, upstream_port=step.port)
        old = stack.enter_context(gateway(before, direct, "before"))
        new = stack.enter_context(gateway(ROOT, direct, "after"))
        for kind in KINDS:
            turn(old, kind), turn(new, kind)  # what is loaded and learned first
            samples[kind] = [(turn(old, kind), turn(new, kind)) for _ in range(options.pairs)]
        old = stack.enter_context(gateway(before, stepping, "before-events"))
        new = stack.enter_context(gateway(ROOT, stepping, "after-events"))
        turn_of_events(old, step), turn_of_events(new, step)
        samples[EVENTS] = [(turn_of_events(old, step), turn_of_events(new, step)) for _ in range(options.pairs)]
    summary = {kind: ratio_of(pairs) for kind, pairs in samples.items()}
    write(options.out, {"about": about, "summary": summary, "samples": samples})
    print(json.dumps(summary, indent=1))


if __name__ == "__main__":
    main()
