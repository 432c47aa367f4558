"""Writes the newest result's numbers into docs/gateway-benchmark.md, between its markers.

python -m benchmarks.gateway.report [--check]
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.gateway.plot import LABELS
from benchmarks.gateway.summary import LITELLM, RELAY
from benchmarks.provenance import ROOT

DOC = ROOT / "docs" / "gateway-benchmark.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- numbers: written by python -m benchmarks.gateway.report -->", "<!-- end of numbers -->"
GATEWAY, TRIP = "gateway", "gateway-trip"
IDLE_STREAMS = 1000

OPEN_LOOP, CLOSED_LOOP = ", at 70 % of the open-loop rate", ", at 70 % of the closed-loop rate"

Numbers = Mapping[str, Any]
Goal = tuple[str, float | None, str, Callable[[float], bool]]
"""What, measured, the aim, whether that meets it."""

COLUMNS = (
    ("requests/s", "requests_per_s", "{:,.0f}"),
    ("CPU ms a request", "cpu_ms_per_request", "{:.2f}"),
    ("added p50, ms", "added_p50_ms", "{:.2f}"),
    ("added p99, ms", "added_p99_ms", "{:.2f}"),
    ("events/s", "events_per_s", "{:,.0f}"),
    ("added TTFT p99, ms", "added_ttft_p99_ms", "{:.2f}"),
    ("added ITL p99, ms", "added_itl_p99_ms", "{:.2f}"),
    ("MiB, 1,000 idle streams", "idle_mib", "{:.0f}"),
    ("of these the streams'", "idle_added_mib", "{:.0f}"),
    ("left open upstream", "idle_left_open", "{:,}"),
)

OPEN_COLUMNS = (
    ("requests/s served", "unary", "requests_per_s", "{:,.0f}"),
    ("at, requests/s", "unary", "requests_at", "{:,.0f}"),
    ("core 0 busy then", "unary", "core_busy", "{:.0%}"),
    ("CPU ms a request", "unary", "cpu_ms_per_request", "{:.2f}"),
    ("added p50, ms", "unary", "added_p50_ms", "{:.2f}"),
    ("added p99, ms", "unary", "added_p99_ms", "{:.2f}"),
    ("events/s served", "streams", "events_per_s", "{:,.0f}"),
    ("at, events/s", "streams", "events_at", "{:,.0f}"),
    ("core 0 busy then", "streams", "streams_core_busy", "{:.0%}"),
    ("added TTFT p99, ms", "streams", "added_ttft_p99_ms", "{:.2f}"),
    ("added ITL p99, ms", "streams", "added_itl_p99_ms", "{:.2f}"),
)


def newest() -> Path:
    """The folder. Raises IndexError when there is none."""
    return sorted(path.parent for path in RESULTS.glob("*-gateway/result.json"))[-1]


def section(folder: Path) -> str:
    result = json.loads((folder / "result.json").read_text())
    summary, about = result["summary"], result["about"]
    name = folder.name
    versions = about["versions"]
    rivals = f"LiteLLM {versions['litellm']}, vLLM's router {versions['vllm-router']}"
    lines = [
        BEGIN,
        "",
        f"From [{name}](../benchmarks/results/{name}/result.json): {about['at'][:10]}, {about['machine']['cpu']}, "
        f"{about['machine']['cores']} cores, Python {versions['python']}, {rivals}; "
        f"{summary['points']} points, {summary['void_points']} of them void; core 1 at most "
        f"{100 * summary['load_core_busy_most']:.0f} % busy.",
        *laps_line(summary),
        "",
        *table(summary["targets"]),
        "",
        *(open_table(summary["open"]) if "open" in summary else []),
        f"![rates, latencies and memory](../benchmarks/results/{name}/gateway.svg)",
        "",
        *goals(summary),
        "",
        END,
    ]
    return "\n".join(lines)


def laps_line(summary: Numbers) -> list[str]:
    """How steady the target's core was. Results from before it was asked do not say."""
    if "laps_ms" not in summary:
        return []
    least, middle, most = (summary["laps_ms"][which] for which in ("least", "median", "most"))
    return [
        f"A fixed piece of work on core 0, looked at before and after each point, took {least:.1f} ms at best, {middle:.1f} ms "
        f"at the median and {most:.1f} ms at worst: the host takes that much of the core away, and gives it back."
    ]


def table(targets: Mapping[str, Numbers]) -> list[str]:
    lines = ["| | " + " | ".join(title for title, _, _ in COLUMNS) + " |", "| --- |" + " --- |" * len(COLUMNS)]
    for name, numbers in targets.items():
        cells = [_cell(numbers, field, form) for _, field, form in COLUMNS]
        lines.append(f"| {LABELS[name]} | " + " | ".join(cells) + " |")
    return lines


def open_table(targets: Mapping[str, Mapping[str, Numbers]]) -> list[str]:
    lines = [
        "Below the open-loop saturation: at 70 % of what this gateway serves, or of its own where a target serves less.",
        "",
        "| | " + " | ".join(title for title, *_ in OPEN_COLUMNS) + " |",
        "| --- |" + " --- |" * len(OPEN_COLUMNS),
    ]
    for name, numbers in targets.items():
        values = [(numbers[what][field], form) for _, what, field, form in OPEN_COLUMNS]
        cells = ["void" if value is None else form.format(value) for value, form in values]
        lines.append(f"| {LABELS[name]} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _cell(numbers: Numbers, field: str, form: str) -> str:
    value = numbers[field]
    if value is None:
        return "void"
    least = "≥ " if field == "events_per_s" and numbers["events_bounded_by_load"] else ""
    fewer = f" ({numbers['idle_streams']})" if field == "idle_mib" and numbers["idle_streams"] < IDLE_STREAMS else ""
    return least + form.format(value) + fewer


def latency_goals(when: str, ours: Numbers, trip: Numbers) -> list[Goal]:
    return [
        (f"added p50, ms{when}", ours["added_p50_ms"], "≤ 1", lambda value: value <= 1),
        (f"added p99, ms{when}", ours["added_p99_ms"], "≤ 5", lambda value: value <= 5),
        (f"added p50, each request a trip, ms{when}", trip["added_p50_ms"], "≤ 1", lambda value: value <= 1),
        (f"added p99, each request a trip, ms{when}", trip["added_p99_ms"], "≤ 5", lambda value: value <= 5),
        (f"added time to the first event, p99, ms{when}", ours["added_ttft_p99_ms"], "≤ 5", lambda value: value <= 5),
        (f"added time between events, p99, ms{when}", ours["added_itl_p99_ms"], "≤ 2", lambda value: value <= 2),
    ]


def _of(targets: Mapping[str, Numbers], field: str) -> float | None:
    mine, other = targets[GATEWAY][field], targets[LITELLM][field]
    return round(mine / other, 3) if mine is not None and other else None


def goals(summary: Numbers) -> list[str]:
    """Each aim, what was measured, and whether that meets it; losses as plainly as wins."""
    ours, trip = summary["targets"][GATEWAY], summary["targets"][TRIP]
    ratios = summary["ratios"]
    to_relay, trip_to_relay = ratios[RELAY][GATEWAY], ratios[RELAY][TRIP]
    rows: list[Goal] = [
        ("unary, of the bare relay's rate", to_relay["requests_per_s"], "≥ 0.60", lambda value: value >= 0.6),
        ("the same by CPU seconds a request", _inverse(to_relay["cpu_ms_per_request"]), "≥ 0.60", lambda v: v >= 0.6),
        ("unary, each request a trip to Valkey", trip_to_relay["requests_per_s"], "≥ 0.45", lambda v: v >= 0.45),
        *latency_goals(CLOSED_LOOP, ours, trip),
        ("streamed events a second", ours["events_per_s"], "≥ 20000", lambda value: value >= 20_000),
        ("memory with 1,000 idle streams, MiB", ours["idle_mib"], "< 150 MB", lambda value: value * 1.048576 < 150),
    ]
    if "open" in summary:
        flat = {name: parts["unary"] | parts["streams"] for name, parts in summary["open"].items()}
        rows += latency_goals(OPEN_LOOP, flat[GATEWAY], flat[TRIP])
        if LITELLM in flat:
            rows += [
                (f"added {p}, of LiteLLM's{OPEN_LOOP}", _of(flat, f"added_{p}_ms"), "≤ 0.2", lambda value: value <= 0.2)
                for p in ("p50", "p99")
            ]
    if LITELLM in ratios:
        to_litellm = ratios[LITELLM][GATEWAY]
        rate, p50, p99 = (to_litellm[field] for field in ("requests_per_s", "added_p50_ms", "added_p99_ms"))
        rows += [
            ("requests a second, of LiteLLM's", rate, "≥ 5", lambda value: value >= 5),
            (f"added p50, of LiteLLM's{CLOSED_LOOP}", p50, "≤ 0.2", lambda value: value <= 0.2),
            (f"added p99, of LiteLLM's{CLOSED_LOOP}", p99, "≤ 0.2", lambda value: value <= 0.2),
        ]
    lines = ["| this gateway | measured | aim | |", "| --- | --- | --- | --- |"]
    for what, value, aim, met in rows:
        verdict = "void" if value is None else "met" if met(value) else "**missed**"
        lines.append(f"| {what} | {'void' if value is None else f'{value:g}'} | {aim} | {verdict} |")
    opened = summary.get("open", {}).get(GATEWAY, {"unary": {}, "streams": {}})
    lines += closed_loop_line(ours, opened["unary"])
    soon = opened["streams"]
    if "spread_events_at" in soon:
        lines += ["", spread_line(soon)]
    if "soon_events_per_s" in soon:
        lines += ["", soon_line(soon["soon_events_per_s"])]
    rust = summary["targets"].get("vllm-router")
    if rust and rust["requests_per_s"] and ours["requests_per_s"]:
        rate = rust["requests_per_s"] / ours["requests_per_s"]
        lines += ["", f"vLLM's router bears {rate:.1f} times this gateway's unary rate on a core."]
    return lines


def closed_loop_line(closed: Numbers, opened: Numbers) -> list[str]:
    """Where the latencies at 70 % of the closed-loop rate were taken, beside what is served in an open loop."""
    at, served = closed["latency_at_requests_per_s"], opened.get("requests_per_s")
    if not at or not served:
        return []
    return [
        "",
        f"70 % of the closed-loop rate is {at:,.0f} requests a second: {at / served:.0%} of what an open loop is served.",
    ]


def spread_line(numbers: Numbers) -> str:
    first, gap = (
        "void" if numbers[field] is None else f"{numbers[field]:.2f} ms"
        for field in ("spread_added_ttft_p99_ms", "spread_added_itl_p99_ms")
    )
    return (
        f"With streams that begin anywhere within their interval, at {numbers['spread_events_at']:,.0f} events a second: "
        f"added to the first event {first}, between events {gap} (p99)."
    )


def soon_line(rate: float | None) -> str:
    if rate is None:
        return "At no rate that was tried did streams begin within 5 ms (p99 of what is added to the first event)."
    return f"Up to {rate:,.0f} events a second this gateway adds at most 5 ms to the first event at p99."


def _inverse(value: float | None) -> float | None:
    return round(1 / value, 2) if value else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when the page is not up to date")
    check = parser.parse_args().check
    page = DOC.read_text()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    wanted = before + section(newest()) + after
    if check and wanted != page:
        sys.exit(f"{DOC.name} does not have the numbers of {newest().name}")
    if not check:
        DOC.write_text(wanted)


if __name__ == "__main__":
    main()
