"""The tools of one request: read once, with all that typing, enforcing and judging need.

`declare` is the door. A tool whose schema no grammar can stand for is refused (the gateway answers 400 with the
message of `UnsupportedTool`), or, under `OnUnsupported.NAMES_ONLY`, kept with its name enforced and its arguments
free; `Declared.degraded` lists those, for the counter.
"""

import hashlib
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from prime_inference.toolcalls.bounded_search import TooSlow
from prime_inference.toolcalls.dialect import explicit
from prime_inference.toolcalls.draft7 import Validator, is_valid, validator
from prime_inference.toolcalls.errors import ToolError, Unreadable, UnsupportedTool
from prime_inference.toolcalls.findings import Finding
from prime_inference.toolcalls.glm import MARKERS
from prime_inference.toolcalls.kinds import EVERY_KIND, argument_schemas, kinds
from prime_inference.toolcalls.normalise import normalise
from prime_inference.toolcalls.recent import Recent
from prime_inference.toolcalls.subschemas import Schema
from prime_inference.toolcalls.values import Argument

PREPARED_TOOLS = 4096
"""Tools kept prepared, and as many schemas, which many tools may share. An agent sends the same tools on every turn; at some
20 KB each this is 160 MB at the most."""
ANY_ARGUMENTS: dict[str, Any] = {"type": "object"}
"""What a grammar gets for a tool whose arguments are free."""


class OnUnsupported(StrEnum):
    REFUSE = "refuse"
    NAMES_ONLY = "names_only"


class Checks:
    """The validators of one schema, made when the first call is judged: a request's door needs none."""

    def __init__(self, parameters: Schema, meaning: Schema) -> None:
        self._parameters = parameters
        self._meaning = meaning

    @cached_property
    def counted(self) -> Validator | None:
        return validator(self._parameters)

    @cached_property
    def client(self) -> Validator | None:
        return self.counted if self._meaning is self._parameters else validator(self._meaning)


@dataclass(frozen=True)
class Tool:
    name: str
    function: dict[str, Any]
    """As the client sent it."""
    meaning: Schema
    """Its parameters in JSON Schema's own words."""
    grammar: dict[str, Any] | None
    """Its parameters as a grammar holds them; None when only the name is enforced."""
    findings: tuple[Finding, ...]
    checks: "Checks"
    unsupported: Unreadable | None = None
    _arguments: dict[str, Argument] = field(default_factory=dict, repr=False, compare=False)

    @property
    def client(self) -> Validator | None:
        """For the client's meaning. None when the schema cannot be compiled: then every call is valid."""
        return self.checks.client

    @property
    def counted(self) -> Validator | None:
        """For the very schema, as OpenRouter's counter reads it. The same object as `client` where nothing was reworded."""
        return self.checks.counted

    @property
    def enforced(self) -> dict[str, Any]:
        """What the grammar holds the arguments to. `strict: false` frees them, as the OpenAI API has it."""
        if self.grammar is None or self.function.get("strict") is False:
            return ANY_ARGUMENTS
        return self.grammar

    @cached_property
    def digest(self) -> str:
        """Of all that a grammar is made from."""
        return hashlib.sha256(json.dumps([self.name, self.enforced]).encode()).hexdigest()

    def argument(self, key: str) -> Argument:
        known = self._arguments.get(key)
        if known is None:
            known = self._argument(key)
            if key in declared_keys(self.meaning):  # a model could otherwise fill the table with keys it makes up
                self._arguments[key] = known
        return known

    def _argument(self, key: str) -> Argument:
        schemas = argument_schemas(self.meaning, self.meaning, key)
        checker = self.client
        if not schemas or checker is None:
            return Argument(EVERY_KIND, lambda _: True)
        admitted = frozenset[str]().union(*(kinds(schema, self.meaning) for schema in schemas))
        return Argument(admitted, lambda value: any(is_valid(checker, schema, value) for schema in schemas))


def declared_keys(schema: Schema) -> Mapping[str, Any]:
    return schema.get("properties", {}) if isinstance(schema, dict) else {}


@dataclass(frozen=True)
class Declared:
    tools: dict[str, Tool]

    @property
    def degraded(self) -> tuple[Tool, ...]:
        return tuple(tool for tool in self.tools.values() if tool.unsupported is not None)

    def forwarded(self) -> list[dict[str, Any]]:
        """The request's `tools` for an engine that builds the grammar itself: parameters as a grammar can hold them."""
        return [
            {"type": "function", "function": {**tool.function, "parameters": _for_engine(tool)}}
            for tool in self.tools.values()
        ]


def _for_engine(tool: Tool) -> Any:
    return tool.grammar if tool.grammar is not None else ANY_ARGUMENTS


_tools: Recent[Tool] = Recent(PREPARED_TOOLS)
"""By the function's JSON."""
_schemas: Recent[Tool] = Recent(PREPARED_TOOLS)
"""By the parameters' JSON: a new description, or another name, costs no second reading."""


def declare(tools: Sequence[Any] | None, on_unsupported: OnUnsupported = OnUnsupported.REFUSE) -> Declared:
    """Raises `ToolError` (400) for a list that is no list of function tools."""
    steps = declaring(tools, on_unsupported)
    try:
        schema = next(steps)
        while True:
            schema = steps.send(read_schema(schema))
    except StopIteration as done:
        declared: Declared = done.value
        return declared


def declaring(
    tools: Sequence[Any] | None, on_unsupported: OnUnsupported = OnUnsupported.REFUSE
) -> Generator[str, Tool | None, Declared]:
    """`declare` for who has other work between two schemas: yields each that was never read, as JSON, and is sent what
    `read_schema` makes of it. A schema takes about 0.4 ms of a processor, the largest ones 100 ms and more."""
    if tools is not None and (isinstance(tools, str | bytes) or not isinstance(tools, Sequence)):
        raise ToolError("tools: must be a list")
    result: dict[str, Tool] = {}
    for index, entry in enumerate(tools or ()):
        function = entry.get("function") if isinstance(entry, dict) and entry.get("type") == "function" else None
        if not isinstance(function, dict):
            raise ToolError(f"tools[{index}]: {_what_it_is_not(entry)}")
        tool = yield from _prepared(index, function)
        if tool.unsupported is not None and on_unsupported is OnUnsupported.REFUSE:
            raise UnsupportedTool(tool.name, tool.unsupported.path, tool.unsupported.reason)
        if tool.name in result:
            raise ToolError(f"tools[{index}]: {tool.name!r} is declared twice")
        result[tool.name] = tool
    return Declared(result)


def _what_it_is_not(entry: Any) -> str:
    kind = entry.get("type") if isinstance(entry, dict) else None
    if isinstance(kind, str) and kind != "function":
        return f"tools of type {kind!r} are not served in chat completions; only those of type 'function' are"
    return "must be an object with 'type': 'function' and a 'function' that has a name and parameters"


def _prepared(index: int, function: dict[str, Any]) -> Generator[str, Tool | None, Tool]:
    too_deep = f"tools[{index}]: the schema is nested too deeply"
    try:
        function_json = json.dumps(function, ensure_ascii=False)
        known = _tools.get(function_json)
        if known is not None:
            return known
        function = json.loads(function_json)  # what is remembered must not be the caller's
        schema = json.dumps(function.get("parameters"), ensure_ascii=False)
    except RecursionError as error:
        raise ToolError(too_deep) from error
    name = function.get("name")
    if not isinstance(name, str) or not name or name != name.strip() or any(marker in name for marker in MARKERS):
        raise ToolError(
            f"tools[{index}]: a name must be a text without surrounding white space or markers, not {name!r}"
        )
    nameless = _schemas.get(schema)
    if nameless is None:
        nameless = yield schema
        if nameless is None:
            raise ToolError(too_deep)
        _schemas.put(schema, nameless)
    tool = replace(nameless, name=name, function=function, _arguments={})
    _tools.put(function_json, tool)
    return tool


def read_schema(parameters_json: str) -> Tool | None:
    """A nameless tool of this schema. None when it is nested too deeply to be read. May run in any thread."""
    try:
        return _read(json.loads(parameters_json))
    except RecursionError:
        return None


def _read(parameters: Any) -> Tool:
    parameters = {"type": "object", "properties": {}} if parameters is None else parameters
    try:
        meaning = explicit(parameters)
    except Unreadable as problem:
        return Tool("", {}, True, None, (), Checks(parameters, parameters), problem)
    checks = Checks(parameters, meaning)
    try:
        grammar = normalise(meaning)
    except Unreadable as problem:
        return Tool("", {}, meaning, None, (), checks, problem)
    except TooSlow as slow:  # of an enumeration's values, which a pattern beside it thins out
        return Tool("", {}, meaning, None, (), checks, Unreadable("", str(slow)))
    return Tool("", {}, meaning, grammar.schema, grammar.findings, checks)


def forget() -> None:
    """What was read so far, for measurements."""
    _tools.clear()
    _schemas.clear()
