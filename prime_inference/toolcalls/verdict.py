"""What a finished tool call is worth: one verdict, and the one that OpenRouter would count.

The two differ only for schemas that use another dialect's words. Under `nullable: true` the client takes null and the
counter does not; the client's `"type": "dict"` is an object, and the counter counts every such call as a mismatch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from prime_inference.toolcalls.declared import Tool
from prime_inference.toolcalls.draft7 import mismatches
from prime_inference.toolcalls.strict_json import NotJson, parse


class Verdict(StrEnum):
    OK = "Ok"
    UNKNOWN_NAME = "UnknownName"
    INVALID_JSON = "InvalidJson"
    SCHEMA_MISMATCH = "SchemaMismatch"
    DROPPED = "Dropped"
    """A call that the model began, or had to make, and that the client never got."""


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    counted: Verdict
    name: str
    reasons: tuple[str, ...] = ()


def judge(name: str, arguments: str, tools: Mapping[str, Tool]) -> Judgement:
    tool = tools.get(name)
    if tool is None:
        return Judgement(Verdict.UNKNOWN_NAME, Verdict.UNKNOWN_NAME, name, (f"{name!r} is not declared",))
    try:
        value = parse(arguments)
    except NotJson as problem:
        return Judgement(Verdict.INVALID_JSON, Verdict.INVALID_JSON, name, (str(problem),))
    reasons = _mismatches(tool.client, value)
    counted = reasons if tool.counted is tool.client else _mismatches(tool.counted, value)
    return Judgement(_verdict(reasons), _verdict(counted), name, tuple(reasons))


def _mismatches(checker: Any, value: Any) -> list[str]:
    return [] if checker is None else mismatches(checker, value)


def _verdict(reasons: list[str]) -> Verdict:
    return Verdict.SCHEMA_MISMATCH if reasons else Verdict.OK
