"""What of a request with tools leaves for a frontend that leaves the text raw: pure.

The tools stay as the client wrote them, since they are prompt there and nothing else. Without a tool parser Dynamo builds
no grammar for them, and it takes ours as `guided_grammar` under `tool_choice` auto or none.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from prime_inference.toolcalls.choice import Choice, Mode

OWN_GRAMMARS = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structural_tag",
    "structured_outputs",
)
"""Ways of Dynamo and vLLM to give a grammar with a request. An engine holds an answer to one."""


def asks_for_a_format(fields: Mapping[str, Any]) -> str | None:
    """The parameter that asks the engine for another grammar than that of the tools."""
    wanted = fields.get("response_format")
    if wanted is not None and not (isinstance(wanted, dict) and wanted.get("type") == "text"):
        return "response_format"
    return next((name for name in OWN_GRAMMARS if fields.get(name) is not None), None)


def format_tag(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """The format that the request asks for, as the content of a structural tag; None for one that it cannot be. Where the
    thinking is open it must begin behind the thinking, and an engine would begin it with the first token."""
    wanted = fields.get("response_format")
    if isinstance(wanted, dict):
        inner = wanted.get("json_schema")
        schema = inner.get("schema", True) if isinstance(inner, dict) else {"type": "object"}
        return _json(schema) if wanted.get("type") in ("json_object", "json_schema") else None
    made = (make(fields[name]) for name, make in FORMATS.items() if fields.get(name) is not None)
    return next(made, None)


def _json(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema}


FORMATS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "guided_json": lambda given: _json(msgspec.json.decode(given) if isinstance(given, str) else given),
    "guided_regex": lambda given: {"type": "regex", "pattern": given},
    "guided_choice": lambda given: {"type": "or", "elements": [{"type": "const_string", "value": g} for g in given]},
    "guided_grammar": lambda given: {"type": "grammar", "grammar": given},
}


def with_format(fields: Mapping[str, Any], grammar: str) -> dict[str, Any]:
    """The request's fields as they leave, with this grammar in place of the format that it asked for."""
    kept = {name: value for name, value in fields.items() if name not in ("response_format", *OWN_GRAMMARS)}
    return {**kept, "guided_grammar": grammar}


def forwarded(fields: Mapping[str, Any], choice: Choice, grammar: str | None) -> dict[str, Any]:
    """The request's fields as they leave. `grammar` is None where the client's own format takes its place."""
    tools = [without_strict(tool) for tool in fields["tools"]]
    there = Mode.NONE if choice.mode is Mode.NONE else Mode.AUTO
    result = {**fields, "tools": tools, "tool_choice": there.value}
    return result if grammar is None else with_format(result, grammar)


def without_strict(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Dynamo refuses a strict tool that leaves a key optional (400). The grammar is what is strict, and it is ours."""
    function = tool["function"]
    if "strict" not in function:
        return dict(tool)
    return {**tool, "function": {key: value for key, value in function.items() if key != "strict"}}


def thinking_open(fields: Mapping[str, Any], thinks: bool) -> bool:
    """Whether this request's prompt leaves the thinking open, as GLM's chat templates decide it. Dynamo takes the
    template's arguments under both names."""
    for name in ("chat_template_kwargs", "chat_template_args"):
        arguments = fields.get(name)
        if isinstance(arguments, dict) and arguments.get("enable_thinking") is False:
            return False
    return thinks
