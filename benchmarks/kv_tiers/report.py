"""Writes the newest results' numbers into docs/kv.md, between its markers.

python -m benchmarks.kv_tiers.report [--check]
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.provenance import ROOT

DOC = ROOT / "docs" / "kv.md"
RESULTS = ROOT / "benchmarks" / "results"

Result = Mapping[str, Any]


def newest(name: str) -> Path | None:
    """The newest result file of that name."""
    found = sorted(RESULTS.glob(f"*-{name}/result.json"))
    return found[-1] if found else None


def l2_section(result: Result) -> str:
    """Our L2 client beside LMCache's: the table, and how many are faster and slower."""
    lines = [
        "| operation | values | connections | ours GB/s | LMCache GB/s | ratio |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["rows"]:
        low, high = row["speed_ratio_95"]
        moves = row["operation"] != "lookup"
        cells = [
            row["operation"],
            row["values"].partition(" (")[0] if moves else f"{row['keys']} keys",
            str(row["connections"]) + ("" if moves or row["connections"] == 1 else " (ours 1)"),
            *(f"{row['gb_per_s'][name]:.2f}" if moves else "" for name in ("ours", "lmcache")),
            f"{row['speed_ratio_median']:.2f} [{low:.2f}, {high:.2f}]",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", l2_verdict(result["rows"])])


def l2_verdict(rows: Sequence[Result]) -> str:
    moving = [row for row in rows if row["operation"] != "lookup"]
    faster = [row for row in moving if row["speed_ratio_95"][0] > 1]
    slower = [row["speed_ratio_median"] for row in moving if row["speed_ratio_95"][1] < 1]
    same = len(moving) - len(faster) - len(slower)
    by = f", by {100 * (1 - max(slower)):.0f} to {100 * (1 - min(slower)):.0f} % at the median" if slower else ""
    return (
        f"Of the {len(moving)} loads and stores {len(faster)} are shown faster (the interval is above 1), "
        f"{same} show no difference and {len(slower)} are shown slower{by}."
    )


def under_load_section(result: Result) -> str:
    """The walk over the tier's paths: a row a path, then what must not have happened."""
    summary, settings = result["summary"], result["settings"]
    lines = [
        "| path | answered | text as a cold one | needles | tokens cached: prompts | chunks read from L2 | caught | slowest |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for way, row in summary["ways"].items():
        if not row["asked"]:
            continue
        cells = [
            way,
            f"{row['answered']} of {row['asked']}",
            f"{row['equal']} of {row['pairs']}",
            str(row["needles"]),
            ", ".join(f"{tokens}: {prompts}" for tokens, prompts in row["cached_tokens"].items()),
            str(row["chunks_from_l2"]),
            f"{row['caught']} of {row['asked']}" if "caught" in row else "",
            f"{row['slowest_s']:.1f} s",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    load, lookups, loads = summary["load"], summary["lookups"], summary["loads"]
    slowest = f"the median in {load['median_s']:.1f} s and the slowest in {load['slowest_s']:.1f} s"
    statuses = ", ".join(f"{count} with {status}" for status, count in load["statuses"].items())
    return "\n".join(
        [
            *lines,
            "",
            f"Hung: {summary['hung']}. The load beside them: {load['asked']} questions, {statuses} "
            f"({load['refused_while_served']} of the others at a time when no process was being replaced), {slowest}. "
            f"{batches('lookups', lookups)} (deadline {settings['lookup_deadline_s']} s); "
            f"{batches('loads', loads)} (deadline {settings['load_deadline_s']} s).",
            f"Keys looked up: {counts(lookups['keys'])}; loaded: {counts(loads['keys'])}. Loads as the engine saw them end: "
            f"{counts(summary['engine']['ends'])}.{paired(summary)}",
        ]
    )


def paired(summary: Result) -> str:
    if "l2_minus_computed" not in summary:
        return ""
    told = summary["l2_minus_computed"]
    low, high = told["interval_95_s"]
    return (
        f" The whole answer from L2, less the same prompt computed right after: {told['median_s']:+.2f} s at the median of "
        f"{told['pairs']} pairs, 95 % interval {low:+.2f} to {high:+.2f} s."
    )


def batches(what: str, told: Result) -> str:
    return f"{told['batches']:.0f} {what} of the L2 client, the slowest ended after {told['slowest_s']:.3f} s"


def counts(told: Mapping[str, float]) -> str:
    return ", ".join(f"{count:.0f} {name}" for name, count in told.items()) or "none"


def paired_section(result: Result) -> str:
    """Gate against computing and against loading always, a row a bandwidth, in the order in which they were met."""
    break_even = result["break_even_bytes_per_s"]
    lines = [
        f"R was {result['prefill']['tokens_per_s']:.0f} tokens a second and so B* {break_even / 1e6:.1f} MB/s.",
        "",
        "| link | compute | always load | gate | gate loaded | gate less compute | settled | gate less always | settled |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["summary"]:
        medians = row["median_s"]
        cells = [
            f"{row['multiple']:g} x B*, {row['multiple'] * break_even / 1e6:.1f} MB/s",
            *(f"{medians[arm]:.2f}" for arm in ("compute", "always", "gate")),
            f"{row['loaded']['gate']} of {row['prompts']}",
            *(
                f"{told['mean_s']:+.2f} [{told['mean_95_s'][0]:+.2f}, {told['mean_95_s'][1]:+.2f}]" if told else ""
                for pair in ("gate_minus_compute", "gate_minus_always")
                for told in (row[pair]["all"], row[pair]["settled"])
            ),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", paired_verdict(result["summary"])])


def paired_verdict(summary: Sequence[Result]) -> str:
    """Where the whole interval of the mean, learning included, lies on one side of nothing."""

    def where(pair: str, sign: int) -> str:
        found = [
            f"{row['multiple']:g}" for row in summary if min(sign * end for end in row[pair]["all"]["mean_95_s"]) > 0
        ]
        return " and ".join(found) + " x B*" if found else "no bandwidth"

    return " ".join(
        f"Against {other} the gate is shown faster at {where(pair, -1)} and slower at {where(pair, 1)}."
        for pair, other in (("gate_minus_compute", "computing"), ("gate_minus_always", "loading always"))
    )


SECTIONS: tuple[tuple[str, str, Callable[[Result], str]], ...] = (
    ("l2", "kv-l2-exchange", l2_section),
    ("paired", "kv-paired", paired_section),
    ("under load", "kv-under-load", under_load_section),
    ("needles", "kv-needles-longest", under_load_section),
)


def rendered(page: str) -> str:
    """The page with every section as its newest result has it. Raises ValueError when a marker is missing."""
    for title, name, section in SECTIONS:
        path = newest(name)
        if path is None:
            continue
        begin = f"<!-- {title}: written by python -m benchmarks.kv_tiers.report -->\n"
        end = f"<!-- end of {title} -->"
        before, _, rest = page.partition(begin)
        _, found, after = rest.partition(end)
        if not found:
            raise ValueError(f"docs/kv.md has no section {title!r}")
        result = json.loads(path.read_text())
        load_average = result["provenance"]["machine"]["load_average_at_start"][0]
        told = (
            f"`{path.parent.name}/result.json`; load average {load_average:.1f} when it began.\n\n{section(result)}\n"
        )
        page = before + begin + told + end + after
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the page is up to date")
    check = parser.parse_args().check
    page = DOC.read_text()
    written = rendered(page)
    if check:
        sys.exit(0 if written == page else "docs/kv.md is older than its results: python -m benchmarks.kv_tiers.report")
    DOC.write_text(written)


if __name__ == "__main__":
    main()
