"""Public suites that a user has downloaded, as cases. Nothing is fetched, and a suite that is not there is not run.

Below the folder given with `--public`, each as its repository has it:

- `bfcl/BFCL_v4_*.json` (ShishirPatil/gorilla, `bfcl_eval/data`): a JSON object a line with `id`, `question` (a list of turns,
  each a list of messages) and `function` (a list of functions whose types are Python's: `dict`, `float`, `tuple`);
- `kimi/**/valid.jsonl` (MoonshotAI/Kimi-Vendor-Verifier, `testdata/walle_validator_cases`; they come from MoonshotAI/walle): a
  bare schema a line, of any type, `{}` and references to its own root included;
- `k2/samples.jsonl` (MoonshotAI/K2-Vendor-Verifier): a whole chat request a line, whose role `_input` means system.

A line of another shape is an error, never skipped. Schemas that say nothing (a reference that leads nowhere) are left out, and
counted.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prime_inference.toolcalls.declared import declare
from prime_inference.toolcalls.errors import UnsupportedTool
from prime_inference.toolcalls.subschemas import map_subschemas
from prime_inference.toolcalls.suite.cases import Case, function
from prime_inference.toolcalls.suite.live import MOST_TOKENS

BFCL_FILES = (
    *("simple_python", "multiple", "parallel", "parallel_multiple"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
)
"""BFCL categories that are one request and want at least one call."""


class UnknownLayout(ValueError):
    """A line of a downloaded suite is not what its loader knows."""


def public_cases(folder: Path) -> tuple[list[Case], dict[str, str]]:
    """The cases of every suite found, and for what is not run the reason."""
    cases: list[Case] = []
    absent: dict[str, str] = {}
    for name, load in (("bfcl", bfcl), ("kimi", kimi), ("k2", k2)):
        found = list(load(folder / name))
        served = [case for case in found if _can_be_asked(case)]
        cases += served
        if not found:
            absent[f"public/{name}"] = f"no files in {name}/"
        elif len(served) < len(found):
            absent[f"public/{name}/left-out"] = f"{len(found) - len(served)} cases whose schemas say nothing"
    return cases, absent


def _can_be_asked(case: Case) -> bool:
    try:
        declare(case.tools)
    except UnsupportedTool:
        return False
    return True


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Only newlines end a line: a string may hold other separators."""
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            entry = json.loads(line)
            if not isinstance(entry, dict):
                raise UnknownLayout(f"{path.name}:{number}: not an object")
            yield f"{path.stem}.{number}", entry


def bfcl(folder: Path) -> Iterator[Case]:
    for category in BFCL_FILES:
        path = folder / f"BFCL_v4_{category}.json"
        if not path.exists():
            continue
        for where, entry in _lines(path):
            if not {"id", "question", "function"} <= set(entry):
                raise UnknownLayout(f"{where}: needs id, question and function")
            functions = entry["function"] if isinstance(entry["function"], list) else [entry["function"]]
            yield Case(
                f"bfcl.{entry['id']}",
                "public",
                "BFCL v4",
                tuple(
                    function(_name(one["name"]), one["parameters"], description=one.get("description", ""))
                    for one in functions
                ),
                tuple(entry["question"][0]),
                options={"max_tokens": MOST_TOKENS},
                calls_wanted=True,
            )


def _name(name: str) -> str:
    """BFCL's names hold dots, which the OpenAI API does not take in a function's name."""
    return name.replace(".", "_")


def kimi(folder: Path) -> Iterator[Case]:
    for path in sorted(folder.rglob("valid.jsonl")):
        for where, schema in _lines(path):
            yield Case(
                f"kimi.{path.parent.name}.{where}",
                "public",
                "Kimi-Vendor-Verifier",
                (function("record", _as_parameters(schema)),),
                ({"role": "user", "content": "Record some plausible example values with the tool."},),
                tool_choice="required",
                options={"max_tokens": MOST_TOKENS},
                calls_wanted=True,
            )


def _as_parameters(schema: dict[str, Any]) -> dict[str, Any]:
    """Arguments are an object: any other schema becomes that of the one argument `value`."""
    if schema.get("type") == "object":
        return schema
    return {
        "type": "object",
        "properties": {"value": _moved(schema, "#/properties/value")},
        "required": ["value"],
        "additionalProperties": False,
    }


def _moved(schema: Any, to: str) -> Any:
    """The schema with its references to itself, for its new place in a document."""
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "$id"}
    if isinstance(kept.get("$ref"), str) and kept["$ref"][:2] in ("#", "#/"):
        kept["$ref"] = to + kept["$ref"][1:]
    return map_subschemas(kept, "", lambda part, _: _moved(part, to))


def k2(folder: Path) -> Iterator[Case]:
    path = folder / "samples.jsonl"
    if not path.exists():
        return
    for where, request in _lines(path):
        if not isinstance(request.get("messages"), list):
            raise UnknownLayout(f"{where}: needs messages")
        sampling: dict[str, Any] = {
            name: request[name] for name in ("temperature", "top_p", "max_tokens") if name in request
        }
        yield Case(
            f"k2.{where}",
            "public",
            "K2-Vendor-Verifier",
            tuple(request.get("tools") or ()),
            tuple({**turn, "role": "system"} if turn.get("role") == "_input" else turn for turn in request["messages"]),
            tool_choice=request.get("tool_choice", "auto"),
            options={"max_tokens": MOST_TOKENS, **sampling},
        )
