"""A run as one page of HTML that needs nothing else: what is wrong first, all the rest behind one click."""

from html import escape
from typing import Any

from prime_inference.toolcalls.suite.rates import by_group, counted, headline
from prime_inference.toolcalls.suite.run import Result, Run

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --dim: #5b6675; --line: #dde3ea; --back: #fff; }
:root { --bad: #c0392b; --ok: #1f7a4d; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6eaf0; --dim: #9aa6b5; --line: #2c3542; --bad: #ff7b6b; --ok: #5fd39a; --back: #12171e; }
}
body { font: 15px/1.5 system-ui, sans-serif; margin: 2.5rem auto; max-width: 72rem; padding: 0 1.25rem; color: var(--ink);
  background: var(--back); }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2rem 0 .25rem; }
p { margin: .25rem 0; } .dim { color: var(--dim); } .ok { color: var(--ok); } .bad { color: var(--bad); }
table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 600; color: var(--dim); }
td, th { padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.narrow { width: auto; } .tables { display: flex; flex-wrap: wrap; gap: 0 4rem; } .word { white-space: nowrap; }
 code { font: .87em/1.45 ui-monospace, monospace; white-space: pre-wrap; }
summary { cursor: pointer; margin: 1.5rem 0 .5rem; }
"""


def as_html(run: Run, about: dict[str, Any]) -> str:
    wrong = [result for result in run.results if not result.passed]
    right = [result for result in run.results if result.passed]
    asked = ", ".join(f"{escape(key.replace('_', ' '))} {escape(str(value))}" for key, value in about.items())
    skipped = "".join(f"<p>Not run: {escape(group)}: {escape(why)}</p>" for group, why in run.not_run.items())
    groups = [(group, number, passed, number - passed) for group, (number, passed) in by_group(run).items()]
    return "".join(
        (
            '<!doctype html>\n<html lang="en"><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width">',
            f"<title>Tool calls</title><style>{STYLE}</style><h1>Tool calls</h1>",
            f'<p class="{"bad" if wrong else "ok"}">{escape(headline(run))}</p><p class="dim">{asked}</p>{skipped}',
            '<div class="tables"><div><h2>Suites</h2>',
            _table(("suite", "answers", "as they should be", "not"), groups),
            "</div><div><h2>Calls by verdict</h2>",
            _table(("verdict", "calls", "of all"), counted(run, "verdicts")),
            "</div><div><h2>Answers by outcome</h2>",
            _table(("outcome", "answers", "of all"), counted(run, "outcomes")),
            "</div></div>",
            f"<h2>Not as they should be: {len(wrong)}</h2>{_rows(wrong)}" if wrong else "",
            f"<details><summary>As they should be: {len(right)}</summary>{_rows(right)}</details></html>\n",
        )
    )


def _table(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    kinds = ["", *['class="number"'] * (len(heads) - 1)]
    head = "".join(f"<th {kind}>{escape(name)}</th>" for kind, name in zip(kinds, heads, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td {kind}>{escape(str(one))}</td>" for kind, one in zip(kinds, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<table class="narrow"><tr>{head}</tr>{body}</table>'


def _rows(results: list[Result]) -> str:
    rows = "".join(
        f'<tr><td><code>{escape(result.id)}</code></td><td class="word">{escape(result.way)}</td>'
        f'<td class="word">{escape(str(result.outcome or "no answer"))}</td>'
        f"<td>{''.join(f'<code>{escape(problem)}</code><br>' for problem in result.problems)}"
        f'<span class="dim">{escape(result.source)}</span></td></tr>'
        for result in results
    )
    head = "<th>case</th><th>way</th><th>outcome</th><th>what is wrong, and where the case is from</th>"
    return f"<table><tr>{head}</tr>{rows}</table>"
