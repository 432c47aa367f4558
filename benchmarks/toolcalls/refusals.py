"""Tools that must be refused: whether each is, with its name and the place, and what an engine would have made of it."""

from collections import Counter
from typing import Any

from benchmarks.toolcalls.grammars import Grammars
from prime_inference.toolcalls.choice import Choice, Mode
from prime_inference.toolcalls.declared import Declared, OnUnsupported, declare
from prime_inference.toolcalls.errors import ToolError, UnsupportedTool
from prime_inference.toolcalls.subschemas import Schema
from prime_inference.toolcalls.suite.refused import Refused, refused
from prime_inference.toolcalls.tags import build_tag

NAME = "tool"
Row = dict[str, Any]
"""`construct`; `refused`, by the door; `named`, with the tool and the very place, or the entry's index where it is no function
tool; `by_name_only`, kept so under that policy (None: an entry that has no name to keep); `compiles`, as the client sent it
(None: no schema to compile)."""


def refusals(count: int, seed: int, grammars: Grammars) -> list[Row]:
    """One row a tool."""
    return [_row(case, grammars) for case in refused(count, seed, NAME)]


def _row(case: Refused, grammars: Grammars) -> Row:
    error: ToolError | None = None
    try:
        declare([case.entry])
    except ToolError as caught:
        error = caught
    if case.path is None:
        named = error is not None and error.message.startswith("tools[0]: ")
        return _as_row(case, error, named, None, None)
    named = isinstance(error, UnsupportedTool) and (error.tool, error.path) == (NAME, case.path or "/")
    kept = declare([case.entry], OnUnsupported.NAMES_ONLY).degraded
    compiled, _ = grammars.compile(_as_it_is(case.parameters))
    return _as_row(case, error, named, [tool.name for tool in kept] == [NAME], compiled is not None)


def _as_row(case: Refused, error: ToolError | None, named: bool, by_name: bool | None, compiles: bool | None) -> Row:
    return {
        "construct": case.construct,
        "refused": error is not None,
        "named": named,
        "by_name_only": by_name,
        "compiles": compiles,
        "message": error.message if error else "",
    }


def _as_it_is(schema: Schema) -> dict[str, Any]:
    entry = {"type": "function", "function": {"name": NAME, "parameters": {"type": "object", "properties": {}}}}
    declared: Declared = declare([entry])
    tag = build_tag(declared, Choice(Mode.REQUIRED, (NAME,)))
    tag["format"]["tags"][0]["content"]["json_schema"] = schema
    return tag


def totals(rows: list[Row]) -> dict[str, dict[str, int]]:
    """By construct: how many tools, and of them how many were refused, named, kept by name only, and compile as sent."""
    found: dict[str, Counter[str]] = {}
    for row in rows:
        count = found.setdefault(row["construct"], Counter())
        count.update(tools=1, **{key: row[key] is True for key in ("refused", "named", "by_name_only", "compiles")})
    return {construct: dict(count) for construct, count in found.items()}
