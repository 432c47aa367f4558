"""A run as a table, as JSON and as a page of HTML."""

from collections import Counter
from dataclasses import asdict
from html import escape
from typing import Any

from rich.console import Console
from rich.table import Table

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
    table = Table("group", "answers", "passed", "failed", title="tool calls")
    for group, (answers, passed) in _by_group(run).items():
        table.add_row(group, str(answers), str(passed), str(answers - passed))
    for group, reason in run.not_run.items():
        table.add_row(group, "not run", reason, "")
    console.print(table)
    rates = run.rates()
    console.print(f"verdicts {rates['verdicts']}  outcomes {rates['outcomes']}")
    console.print(
        f"wrong by OpenRouter's count: {rates['wrong_by_openrouters_count']} of {rates['ended_in_tool_calls']} "
        "answers that ended in tool_calls"
    )
    failures = [result for result in run.results if not result.passed]
    for result in failures[:MOST_FAILURES_SHOWN]:
        console.print(f"FAILED {result.id} {result.way} [{result.source}] {' | '.join(result.problems)}", markup=False)
    if len(failures) > MOST_FAILURES_SHOWN:
        console.print(f"... and {len(failures) - MOST_FAILURES_SHOWN} more")


def as_html(run: Run, about: dict[str, Any]) -> str:
    groups = "".join(
        f"<tr><td>{escape(group)}</td><td>{answers}</td><td>{passed}</td><td>{answers - passed}</td></tr>"
        for group, (answers, passed) in _by_group(run).items()
    )
    skipped = "".join(f"<p>Not run: {escape(group)}: {escape(why)}</p>" for group, why in run.not_run.items())
    rows = "".join(
        f'<tr class="{"ok" if result.passed else "bad"}"><td>{escape(result.id)}</td><td>{escape(result.way)}</td>'
        f"<td>{escape(result.source)}</td><td>{escape(str(result.outcome or 'no answer'))}</td>"
        f"<td>{escape(' | '.join(result.problems))}</td></tr>"
        for result in sorted(run.results, key=lambda result: result.passed)
    )
    facts = "".join(
        f"<dt>{escape(key)}</dt><dd>{escape(str(value))}</dd>" for key, value in {**about, **run.rates()}.items()
    )
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Tool calls</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1c2430; }}
table {{ border-collapse: collapse; width: 100%; margin: 1rem 0; }}
td, th {{ text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #dde3ea; vertical-align: top; overflow-wrap: anywhere; }}
.bad td:first-child {{ border-left: 4px solid #c0392b; }} .ok td:first-child {{ border-left: 4px solid #2e8b57; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; }} dt {{ color: #5b6675; }} dd {{ margin: 0; }}
</style>
<h1>Tool calls</h1><dl>{facts}</dl>{skipped}
<table><tr><th>group</th><th>answers</th><th>passed</th><th>failed</th></tr>{groups}</table>
<table><tr><th>case</th><th>way</th><th>source</th><th>outcome</th><th>problems</th></tr>{rows}</table></html>
"""  # noqa: E501  (style rules read better on one line)


def _by_group(run: Run) -> dict[str, tuple[int, int]]:
    answers = Counter(result.group for result in run.results)
    passed = Counter(result.group for result in run.results if result.passed)
    return {group: (count, passed[group]) for group, count in answers.items()}
