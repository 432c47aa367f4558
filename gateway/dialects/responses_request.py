"""A Responses request as a chat request: pure. What was refused is named by its place in the request.

Client-side tools are carried over: functions, free-form `custom` tools (a function of one string, which GLM writes bare, so
that the text is the model's own), and functions in a `namespace`. Tools that only OpenAI's servers run are left out and
counted; a client that demands one by `tool_choice` is refused.
"""

from dataclasses import dataclass, field
from typing import Any

from gateway.dialects.chat import (
    Asked,
    Parts,
    Turns,
    json_schema,
    list_at,
    object_at,
    refused,
    sampling,
    text_at,
    thinking,
    written,
)

CUSTOM_INPUT = "input"
"""The one argument of a custom tool's function."""
CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string"}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}
SPEAKERS = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
TEXTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


@dataclass
class ToolNames:
    """What the client calls its tools, by the name that the model knows them by."""

    custom: set[str] = field(default_factory=set)
    spaces: dict[str, tuple[str, str]] = field(default_factory=dict)
    """name -> (namespace, name within it)"""


def asked_in_responses(fields: dict[str, Any]) -> tuple[Asked, ToolNames]:
    """Raises InvalidRequest."""
    names = ToolNames()
    chat = {"model": fields["model"], "stream": bool(fields.get("stream")), **sampling(fields)}
    left_out = 0
    if fields.get("tools"):
        tools, left_out = _tools(list_at(fields["tools"], "tools"), names)
        if tools:
            chat["tools"] = tools
    if fields.get("tool_choice") is not None:
        chat["tool_choice"] = _choice(fields["tool_choice"])
    if fields.get("parallel_tool_calls") is not None:
        chat["parallel_tool_calls"] = fields["parallel_tool_calls"]
    if fields.get("max_output_tokens") is not None:
        chat["max_tokens"] = fields["max_output_tokens"]
    reasoning = fields.get("reasoning")
    if isinstance(reasoning, dict) and reasoning.get("effort") == "none":
        thinking(chat, False)
    wanted = _format(fields.get("text"))
    if wanted is not None:
        chat["response_format"] = wanted
    chat["messages"] = _messages(fields)
    return Asked(chat, left_out), names


def spaced(space: str, name: str) -> str:
    """The name of a function in a namespace, as the model knows it."""
    return f"{space}{name}" if space.endswith("__") else f"{space}__{name}"


# ── turns ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _messages(fields: dict[str, Any]) -> list[dict[str, Any]]:
    turns = Turns()
    if fields.get("instructions"):
        turns.say("system", text_at(fields["instructions"], "instructions"))
    if isinstance(fields["input"], str):
        turns.say("user", fields["input"])
    else:
        for index, item in enumerate(fields["input"]):
            _item(turns, object_at(item, f"input[{index}]"), f"input[{index}]")
    return turns.finish()


def _item(turns: Turns, item: dict[str, Any], at: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        role = SPEAKERS.get(str(item.get("role")))
        if role is None:
            raise refused(f"{at}.role", f"`{at}.role` must be one of {', '.join(SPEAKERS)}.", "invalid_value")
        turns.say(role, _content(item.get("content"), f"{at}.content").content)
    elif kind == "reasoning":
        said = item.get("content") or item.get("summary") or []
        turns.think("\n".join(part["text"] for part in said if isinstance(part, dict) and "text" in part))
    elif kind in ("function_call", "custom_tool_call"):
        name = text_at(item.get("name"), f"{at}.name")
        if item.get("namespace"):
            name = spaced(text_at(item["namespace"], f"{at}.namespace"), name)
        custom = kind == "custom_tool_call"
        given = text_at(item.get("input" if custom else "arguments"), f"{at}.{'input' if custom else 'arguments'}")
        turns.call(
            text_at(item.get("call_id"), f"{at}.call_id"), name, written({CUSTOM_INPUT: given}) if custom else given
        )
    elif kind in ("function_call_output", "custom_tool_call_output"):
        turns.result(text_at(item.get("call_id"), f"{at}.call_id"), _content(item.get("output"), f"{at}.output"))
    elif kind == "item_reference":
        raise refused(at, f"`{at}`: answers are not kept, so none can be referred to.", "unsupported_parameter")
    else:
        raise refused(at, f"`{at}`: items of type {kind!r} are not supported.")


def _content(content: Any, at: str) -> Parts:
    parts = Parts()
    if isinstance(content, str):
        parts.text(content)
        return parts
    for index, given in enumerate(list_at(content, at)):
        part = object_at(given, f"{at}[{index}]")
        kind = part.get("type")
        if kind in TEXTS:
            parts.text(text_at(part.get("text"), f"{at}[{index}].text"))
        elif kind == "refusal":
            parts.text(text_at(part.get("refusal"), f"{at}[{index}].refusal"))
        elif kind == "input_image" and isinstance(part.get("image_url"), str):
            parts.image(part["image_url"], part.get("detail"))
        else:
            raise refused(f"{at}[{index}]", f"`{at}[{index}]`: parts of type {kind!r} are not supported.")
    return parts


# ── tools ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _tools(tools: list[Any], names: ToolNames) -> tuple[list[dict[str, Any]], int]:
    result: list[dict[str, Any]] = []
    left_out = 0
    for index, given in enumerate(tools):
        tool = object_at(given, f"tools[{index}]")
        if tool.get("type") == "namespace":
            space = text_at(tool.get("name"), f"tools[{index}].name")
            for place, inner in enumerate(list_at(tool.get("tools"), f"tools[{index}].tools")):
                one = object_at(inner, f"tools[{index}].tools[{place}]")
                name = text_at(one.get("name"), f"tools[{index}].tools[{place}].name")
                names.spaces[spaced(space, name)] = (space, name)
                result += _tool({**one, "name": spaced(space, name)}, names)
        else:
            made = _tool(tool, names)
            left_out += not made
            result += made
    return result, left_out


def _tool(tool: dict[str, Any], names: ToolNames) -> list[dict[str, Any]]:
    """None for a tool that the client does not run."""
    described = {} if tool.get("description") is None else {"description": tool["description"]}
    if tool.get("type") == "function":
        function = {"name": tool.get("name"), **described, **sampling(tool, ("parameters", "strict"))}
        return [{"type": "function", "function": function}]
    if tool.get("type") == "custom":
        names.custom.add(str(tool.get("name")))
        function = {"name": tool.get("name"), **_with_syntax(tool, described), "parameters": CUSTOM_PARAMETERS}
        return [{"type": "function", "function": function}]
    return []


def _with_syntax(tool: dict[str, Any], described: dict[str, Any]) -> dict[str, Any]:
    """A custom tool's own grammar is told to the model. It is not enforced."""
    syntax = tool.get("format")
    if not isinstance(syntax, dict) or not isinstance(syntax.get("definition"), str):
        return described
    told = f"Its {CUSTOM_INPUT} follows this {syntax.get('syntax', '')} grammar:\n{syntax['definition']}"
    return {"description": f"{described['description']}\n{told}" if described else told}


def _choice(choice: Any) -> Any:
    if isinstance(choice, str):
        return choice
    kind = object_at(choice, "tool_choice").get("type")
    if kind in ("function", "custom"):
        return _named(choice)
    if kind == "allowed_tools":
        tools = [
            _named(object_at(tool, "tool_choice.tools")) for tool in list_at(choice.get("tools"), "tool_choice.tools")
        ]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": tools}}
    raise refused("tool_choice", f"tool_choice: tools of type {kind!r} are not served here.")


def _named(tool: dict[str, Any]) -> dict[str, Any]:
    name = tool.get("name")
    if tool.get("namespace"):
        name = spaced(str(tool["namespace"]), str(name))
    return {"type": "function", "function": {"name": name}}


def _format(text: Any) -> dict[str, Any] | None:
    wanted = text.get("format") if isinstance(text, dict) else None
    if not isinstance(wanted, dict) or wanted.get("type") == "text":
        return None
    if wanted.get("type") == "json_schema":
        return json_schema(wanted.get("schema"), wanted.get("name"), wanted.get("strict"))
    return {"type": wanted.get("type")}
