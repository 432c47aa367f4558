"""One point: the load generator against one target for some seconds, and what the machine did meanwhile."""

import json
import subprocess
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.gateway.build import build
from benchmarks.gateway.histogram import from_pairs, packed
from benchmarks.gateway.machine import LOAD_CORE, TARGET_CORE, busy_shares, core_times, cpu_seconds, memory_bytes
from benchmarks.gateway.pace import lap_ms
from benchmarks.gateway.targets import DIRECT, KEY, Target, turn

TRIES = 2
"""A point that is void says nothing of the target, and is taken again."""

HISTOGRAMS = ("latency", "first_event", "gap", "delay")
LONGEST_TAIL_S = 60.0


@dataclass(frozen=True)
class Length:
    warm_s: float
    seconds: float


def command(mode: str, target: Target, connections: int) -> list[str]:
    program = str(build("load"))
    return ["taskset", "-c", str(LOAD_CORE), program, mode, target.address, target.path, KEY, str(connections)]


def run(mode: str, target: Target, connections: int, length: Length, *more: float) -> dict[str, Any]:
    """The load generator's counts, `cores` (how busy), `cpu_s` (of the target), all of the measured seconds alone."""
    arguments = [f"{value:g}" for value in (length.warm_s, length.seconds, *more)]
    with (
        turn(target),
        subprocess.Popen([*command(mode, target, connections), *arguments], stdout=subprocess.PIPE) as load,
    ):
        time.sleep(length.warm_s)
        cores, cpu = core_times(), cpu_seconds(target.pid)
        time.sleep(length.seconds)
        busy, used = busy_shares(cores, core_times()), cpu_seconds(target.pid) - cpu
        output, _ = load.communicate(timeout=LONGEST_TAIL_S)
    if load.returncode:
        raise RuntimeError(f"the load generator failed against {target.name}")
    told = json.loads(output)
    pairs = {name: told.pop(name) for name in HISTOGRAMS}
    histograms = {name: packed(from_pairs(flat)) for name, flat in pairs.items() if flat}
    return {**told, "cpu_s": round(used, 3), "cores": busy, **histograms}


@dataclass(frozen=True)
class Limits:
    """Beyond these a point is void; shares of a core."""

    load_core: float
    """The load generator would measure itself."""
    others: float
    """On the target's core: who else ran there."""


def point(mode: str, target: Target, connections: int, length: Length, limits: Limits, *more: float) -> dict[str, Any]:
    """As `run`, once more when it was void. `others`: of the target's core, what was neither idle nor the target's;
    `laps_ms`: how fast that core was before and after."""
    for tries in range(1, TRIES + 1):
        before = lap_ms()
        result = run(mode, target, connections, length, *more)
        own = 0.0 if target.name == DIRECT else result["cpu_s"] / length.seconds
        others = round(max(0.0, result["cores"][TARGET_CORE] - own), 3)
        crowded = target.name != DIRECT and others > limits.others
        result |= {"target": target.name, "tries": tries, "others": others, "laps_ms": [before, lap_ms()]}
        result["void"] = crowded or result["cores"][LOAD_CORE] > limits.load_core
        if not result["void"]:
            break
    return result


def idle_streams(target: Target, streams: int, settle_s: float) -> dict[str, Any]:
    """Memory before, and with so many streams that have had their first event and wait for the next."""
    before, pipe = memory_bytes(target.pid), subprocess.PIPE
    with turn(target) as left_open, subprocess.Popen(command("idle", target, streams), stdin=pipe, stdout=pipe) as load:
        assert load.stdin is not None
        assert load.stdout is not None
        opened = json.loads(load.stdout.readline())["open"]
        time.sleep(settle_s)
        during = memory_bytes(target.pid)
        load.stdin.close()
        load.wait(LONGEST_TAIL_S)
    counts = {"streams": opened, "left_open": left_open[0]}
    return {"target": target.name, **counts, "before_bytes": before, "during_bytes": during}
