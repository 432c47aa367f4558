"""A run as JSON, and as a table on a terminal."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from prime_inference.toolcalls.suite.rates import by_group, counted, headline
from prime_inference.toolcalls.suite.run import Run

MOST_FAILURES_SHOWN = 20
"""In the table; the JSON and the page have all."""


def as_json(run: Run, about: dict[str, Any]) -> dict[str, Any]:
    return {
        "about": about,
        "rates": run.rates(),
        "not_run": run.not_run,
        "results": [{**asdict(result), "passed": result.passed} for result in run.results],
    }


def print_table(run: Run, console: Console) -> None:
    table = Table("suite", title="tool calls")
    for name in ("answers", "as they should be", "not"):
        table.add_column(name, justify="right")
    for group, (answers, passed) in by_group(run).items():
        table.add_row(group, str(answers), str(passed), str(answers - passed))
    console.print(table)
    for group, reason in run.not_run.items():
        console.print(f"not run: {group}: {reason}", markup=False)
    for title, what in (("calls", "verdicts"), ("answers", "outcomes")):
        parts = [f"{name} {number} ({share})" for name, number, share in counted(run, what)]
        console.print(f"{title}: {', '.join(parts) or 'none'}", markup=False, highlight=False)
    console.print(headline(run), markup=False, highlight=False)
    failures = [result for result in run.results if not result.passed]
    for result in failures[:MOST_FAILURES_SHOWN]:
        console.print(f"FAILED {result.id} {result.way} [{result.source}] {' | '.join(result.problems)}", markup=False)
    if len(failures) > MOST_FAILURES_SHOWN:
        console.print(f"... and {len(failures) - MOST_FAILURES_SHOWN} more")
