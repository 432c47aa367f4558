"""Public suites that a user has downloaded, as cases. Nothing is fetched, and a suite that is not there is not run.

Layouts, below the folder given with `--public`: `bfcl/BFCL_v4_*.json` (Berkeley function calling),
`kimi/**/valid.jsonl` (Kimi-Vendor-Verifier's schemas), `k2/samples.jsonl` (K2-Vendor-Verifier's requests).

BFCL's layout is the published one. Kimi's and K2's files could not be had when this was written (their data is not
in the snapshots that we read): the loaders take the fields their scripts are described to use, and a line without
them is an error, never skipped.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prime_inference.toolcalls.suite.cases import Case, function
from prime_inference.toolcalls.suite.live import MOST_TOKENS

BFCL_FILES = ("simple_python", "multiple", "parallel", "parallel_multiple", "live_simple", "live_multiple")
"""BFCL categories that are one request and want at least one call."""


class UnknownLayout(ValueError):
    """A line of a downloaded suite is not what its loader knows."""


def public_cases(folder: Path) -> tuple[list[Case], dict[str, str]]:
    """The cases of every suite found, and for each that is not there the reason."""
    cases: list[Case] = []
    absent: dict[str, str] = {}
    for name, load in (("bfcl", bfcl), ("kimi", kimi), ("k2", k2)):
        found = list(load(folder / name))
        cases += found
        if not found:
            absent[f"public/{name}"] = f"no files in {name}/"
    return cases, absent


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
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
        for where, entry in _lines(path):
            schema = entry.get("schema", entry.get("parameters", entry if "type" in entry else None))
            if not isinstance(schema, dict):
                raise UnknownLayout(f"{where}: neither a schema nor an object with one")
            yield Case(
                f"kimi.{path.parent.name}.{where}",
                "public",
                "Kimi-Vendor-Verifier",
                (function("record", schema),),
                ({"role": "user", "content": "Record some plausible example values with the tool."},),
                tool_choice="required",
                options={"max_tokens": MOST_TOKENS},
                calls_wanted=True,
            )


def k2(folder: Path) -> Iterator[Case]:
    path = folder / "samples.jsonl"
    if not path.exists():
        return
    for where, entry in _lines(path):
        request = entry.get("request", entry)
        if "messages" not in request or "tools" not in request:
            raise UnknownLayout(f"{where}: needs messages and tools")
        yield Case(
            f"k2.{where}",
            "public",
            "K2-Vendor-Verifier",
            tuple(request["tools"]),
            tuple(request["messages"]),
            options={"max_tokens": MOST_TOKENS},
        )
