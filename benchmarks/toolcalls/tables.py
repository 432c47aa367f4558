"""The tables of docs/toolcalls.md, written from the newest result of each kind.

    python -m benchmarks.toolcalls.tables

A result is newest when its folder's name under benchmarks/results sorts last. Only what stands between `<!-- KIND -->` and
`<!-- end -->` is replaced; a test asks that the page is what this command would write.
"""

import json
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from benchmarks.provenance import ROOT
from benchmarks.toolcalls.live_summary import summarise
from benchmarks.toolcalls.refusals import totals
from prime_inference.toolcalls.suite.refused import NO_TOOLS

PAGE = ROOT / "docs" / "toolcalls.md"
RESULTS = ROOT / "benchmarks" / "results"
FILES = {
    "scale": "result.json",
    "bfcl": "result.json",
    "cost": "result.json",
    "compile": "compile.json",
    "live": "live.json",
    "wire": "dynamo-own-parsers.json",
}
FOLDERS = {"compile": "cost"}
"""A kind whose file lies in another kind's folder."""
Result = dict[str, Any]


def newest(kind: str) -> tuple[str, Result]:
    """The folder's name, and the result in it."""
    path = sorted(RESULTS.glob(f"*-toolcalls-{FOLDERS.get(kind, kind)}/{FILES[kind]}"))[-1]
    result: Result = json.loads(path.read_text())
    return path.parent.name, result


def circumstances(folder: str, result: Result) -> str:
    about = result.get("about", result)
    machine = about["machine"]
    load = machine["load_1m"] if "load_1m" in machine else machine["load_average_at_start"][0]
    return f"`{folder}` (commit {about['commit'][:7]}, {machine['cores']} cores, load {load:.1f} when it began)"


def part_of(part: int, whole: int) -> str:
    return f"{part:,} of {whole:,} ({100 * part / whole:.1f} %)" if part else f"0 of {whole:,}"


def rows(*lines: tuple[object, ...]) -> str:
    head, *body = ["| " + " | ".join(str(one) for one in line) + " |" for line in lines]
    return "\n".join((head, "|" + " --- |" * len(lines[0]), *body))


def sides(result: Result) -> str:
    plain, mine, judged = result["plain"], result["normalised"], result["judged"]
    written = judged["right"] + judged["wrong"]
    judge = f"{judged['right_rejected']} of {judged['right']:,} / {judged['wrong_accepted']} of {judged['wrong']:,}"
    return rows(
        ("", "as the client sent it", "normalised"),
        ("compile failures that reach the engine", part_of(plain["unreported_failures"], plain["tools"]),
         part_of(mine["unreported_failures"], mine["tools"])),
        ("right arguments rejected by the grammar", part_of(plain["right_rejected"], plain["right"]),
         part_of(mine["right_rejected"], mine["right"])),
        ("wrong arguments accepted by the grammar", part_of(plain["wrong_accepted"], plain["wrong"]),
         part_of(mine["wrong_accepted"], mine["wrong"])),
        ("right rejected / wrong accepted by the judge", "", judge),
        ("wrong after parsing", "", part_of(judged["wrong_after_parsing"], written)),
        ("treated otherwise when sent as EBNF text", "", mine["text_differs"]),
    )  # fmt: skip


def scale(folder: str, result: Result) -> str:
    mine, judged = result["normalised"], result["judged"]
    looser = ", ".join(f"{name} {number}" for name, number in Counter(mine["accepted_by"]).most_common())
    beside, kept_out = mine["reordered"] + mine["extended"], mine["reordered_rejected"] + mine["extended_rejected"]
    return (
        f"{circumstances(folder, result)}: {mine['tools']:,} generated tools, every one of "
        f"{len(result['constructs'])} constructs in at least {min(result['constructs'].values())} of them,\n"
        f"xgrammar {result['versions']['xgrammar']}.\n\n{sides(result)}\n\n"
        f"Wrong ones that the grammar accepts, by construct: {looser}; of a tool that is not reported as looser: "
        f"{mine['wrong_accepted_unreported']}.\nCompiled only without their patterns, and reported: {mine['degraded']}.\n"
        f"Apart from these rows: right arguments in another key order ({mine['reordered']:,}) or with an "
        f"undeclared key ({mine['extended']:,}) are out of the\ngrammar's reach by policy "
        f"({part_of(kept_out, beside)} rejected), and right for the judge; {judged['no_spelling']:,} arguments have no\n"
        f"spelling in GLM's text; "
        f"{judged['counted_otherwise']:,} of {judged['right']:,} right ones are a mismatch only for OpenRouter's counter.\n\n"
        f"{refused(result['refusals'])}"
    )


def refused(found: list[dict[str, Any]]) -> str:
    return "Tools that must be refused, in none of the numbers above:\n\n" + rows(
        (
            "",
            "tools",
            "refused",
            "with tool and place",
            "kept by name only, where that is the policy",
            "compile as sent",
        ),
        *(
            (
                *(name.replace("_", " "), one["tools"], one["refused"], one["named"]),
                *(("-", "-") if name in NO_TOOLS else (one["by_name_only"], one["compiles"])),
            )
            for name, one in totals(found).items()
        ),
    )


def bfcl(folder: str, result: Result) -> str:
    refused = "; ".join(one["error"] for one in result["refused"])
    return (
        f"{circumstances(folder, result)}: {result['functions']:,} functions with {result['answers']:,} answers of their "
        f"authors, of which {result['not_fitting']} do not fit\ntheir own function and {result['with_undeclared_keys']} name "
        f"keys that it does not declare; these are left out. Wrong calls that GLM's text cannot say: "
        f"{result['judged']['no_spelling']:,}.\n\n{sides(result)}\n\nRefused at the door: {len(result['refused'])} ({refused})."
    )


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def cost(folder: str, result: Result) -> str:
    samples = result["samples"]
    middle = {name: statistics.median(values) for name, values in samples.items()}
    doors = (
        ('with one verdict, tools of an earlier turn ("compile cached")', "request_warm"),
        ("known schemas under new names or descriptions", "door_redescribed"),
        ("schemas never seen, once", "door_cold"),
        ("the longest that these hold the event loop at once", "door_cold_longest_turn"),
    )
    events = (
        ("in chat completions", "event"),
        ("in Responses", "event_responses"),
        ("in Messages", "event_messages"),
        ("without tools", "event_bare"),
    )
    return (
        f"{circumstances(folder, result)}: 20 generated tools, in ms of processor time.\n\n"
        + rows(
            ("reading, normalising, tag and its key", "p50", "p99"),
            *((name, f"{middle[key]:.2f}", f"{p99(samples[key]):.2f}") for name, key in doors if key in samples),
        )
        + "\n\n"
        + rows(
            ("an event through the gateway's editor, parser and judge", "p50", "p99"),
            *((name, f"{middle[key]:.3f}", f"{p99(samples[key]):.3f}") for name, key in events),
        )
    )


def compile_(folder: str, result: Result) -> str:
    middle = {name: statistics.median(values) for name, values in result["samples"].items()}
    return (
        f"{circumstances(folder, result)}: beside the event loop, in the compile process, {middle['new']:.0f} ms for 20 new "
        f"tools; {middle['recombined']:.0f} ms for a new\ncombination of known ones, which is only written out "
        f"({middle['anew']:.0f} ms if it were compiled again)."
    )


def live(folder: str, result: Result) -> str:
    summary = summarise(result["samples"])
    enforced, free, settings = summary["enforced"], summary["unenforced"], result["settings"]
    cut = Counter(one["family"] for one in result["samples"]["enforced"] if one["class"] == "cut")
    of_each = ", ".join(f"{name} {number}" for name, number in sorted(cut.items(), key=lambda one: (-one[1], one[0])))
    key = "cut_by_the_token_budget"

    def errors(side: Result) -> str:
        return f"{side['errors']} ({side['errors_of_those_not_cut_percent']} %)"

    return (
        f"{circumstances(folder, result)}: half `named`, half `required`, half streamed; temperature "
        f"{settings['temperature']}.\n\n"
        + rows(
            ("", "enforced", "unenforced"),
            *(
                (name, f"{enforced[key]} of {enforced['requests']}", f"{free[key]} of {free['requests']}")
                for name, key in (
                    ("valid calls", "valid"),
                    (f"cut by the budget of {settings['max_tokens']} tokens", key),
                )
            ),
            ("errors of those not cut", errors(enforced), errors(free)),
        )
        + f"\n\nThe cut ones left as `length` without a call: {of_each or 'none'}."
    )


def wire(folder: str, result: Result) -> str:
    cases = {row[0] for row in result["rows"]}
    wrong = {row[0] for row in result["rows"] if row[3]}
    return (
        f"{circumstances(folder, result)}: {len(cases)} wire cases, each whole and in five ways of streaming, through the real "
        f"Dynamo 1.6.1\nfrontend with its own `glm47` and `glm45` parsers: {len(wrong)} cases are wrong in some way "
        f"(half of the generated ones are in the newline form)."
    )


WRITERS: dict[str, Callable[[str, Result], str]] = {
    "scale": scale,
    "bfcl": bfcl,
    "cost": cost,
    "compile": compile_,
    "live": live,
    "wire": wire,
}


def written(page: str) -> str:
    """The page with its tables as the newest results have them."""
    for kind, writer in WRITERS.items():
        begin, end = f"<!-- {kind} -->\n", "\n<!-- end -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        text = begin + writer(*newest(kind)) + end
        places = pattern.findall(page)
        if len(places) != 1:
            raise ValueError(f"the page has {len(places)} places for {kind}")
        page = page.replace(places[0], text)
    return page


def main() -> None:
    before = PAGE.read_text()
    after = written(before)
    PAGE.write_text(after)
    sys.stdout.write("docs/toolcalls.md: " + ("written\n" if after != before else "already as the results are\n"))


if __name__ == "__main__":
    main()
