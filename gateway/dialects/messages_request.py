"""A Messages request as a chat request: pure. What was refused is named by its place in the request.

Client-side tools are carried over. Tools that only Anthropic defines or runs (a `type` of their own) are left out and counted.
"""

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

CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def asked_in_messages(fields: dict[str, Any]) -> Asked:
    """Raises InvalidRequest."""
    chat = {"model": fields["model"], "stream": bool(fields.get("stream")), **sampling(fields)}
    left_out = 0
    if fields.get("tools"):
        tools = [object_at(tool, f"tools[{n}]") for n, tool in enumerate(list_at(fields["tools"], "tools"))]
        ours = [_tool(tool) for tool in tools if tool.get("type") in (None, "custom")]
        left_out = len(tools) - len(ours)
        if ours:
            chat["tools"] = ours
    if fields.get("tool_choice") is not None:
        choice = object_at(fields["tool_choice"], "tool_choice")
        chat["tool_choice"] = _choice(choice)
        if choice.get("disable_parallel_tool_use"):
            chat["parallel_tool_calls"] = False
    if fields.get("max_tokens") is not None:
        chat["max_tokens"] = fields["max_tokens"]
    if fields.get("stop_sequences"):
        chat["stop"] = fields["stop_sequences"]
    if isinstance(fields.get("thinking"), dict):
        thinking(chat, fields["thinking"].get("type") != "disabled")
    config = fields.get("output_config")
    wanted = config.get("format") if isinstance(config, dict) else fields.get("output_format")
    if isinstance(wanted, dict):
        chat["response_format"] = json_schema(wanted.get("schema"))
    chat["messages"] = _messages(fields)
    return Asked(chat, left_out)


def _messages(fields: dict[str, Any]) -> list[dict[str, Any]]:
    turns = Turns()
    if fields.get("system"):
        turns.say("system", _texts(fields["system"], "system"))
    for index, message in enumerate(fields["messages"]):
        at = f"messages[{index}]"
        role = message["role"]
        if role == "assistant":
            _model_said(turns, message.get("content"), at)
        elif role == "user":
            _user_said(turns, message.get("content"), at)
        elif role == "system":
            turns.say("system", _texts(message.get("content"), f"{at}.content"))
        else:
            raise refused(f"{at}.role", f"`{at}.role` must be 'user', 'assistant' or 'system'.", "invalid_value")
    if fields["messages"][-1]["role"] == "assistant":
        raise refused(
            "messages", "The last message must not be the assistant's: an answer cannot be begun for the model."
        )
    return turns.finish()


def _texts(content: Any, at: str) -> str:
    if isinstance(content, str):
        return content
    blocks = [object_at(block, f"{at}[{n}]") for n, block in enumerate(list_at(content, at))]
    return "\n".join(text_at(block.get("text"), f"{at}[{n}].text") for n, block in enumerate(blocks))


def _model_said(turns: Turns, content: Any, at: str) -> None:
    if isinstance(content, str):
        turns.say("assistant", content)
        return
    for index, given in enumerate(list_at(content, f"{at}.content")):
        here = f"{at}.content[{index}]"
        block = object_at(given, here)
        match block.get("type"):
            case "text":
                turns.say("assistant", text_at(block.get("text"), f"{here}.text"))
            case "thinking":
                turns.think(text_at(block.get("thinking"), f"{here}.thinking"))
            case "redacted_thinking":
                pass  # nobody here can read it
            case "tool_use":
                called = object_at(block.get("input"), f"{here}.input")
                turns.call(
                    text_at(block.get("id"), f"{here}.id"), text_at(block.get("name"), f"{here}.name"), written(called)
                )
            case kind:
                raise refused(here, f"`{here}`: blocks of type {kind!r} are not supported.")


def _user_said(turns: Turns, content: Any, at: str) -> None:
    if isinstance(content, str):
        turns.say("user", content)
        return
    said = Parts()
    for index, given in enumerate(list_at(content, f"{at}.content")):
        here = f"{at}.content[{index}]"
        block = object_at(given, here)
        if block.get("type") != "tool_result":
            _part(said, block, here)
            continue
        if said.parts:
            turns.say("user", said.content)
            said = Parts()
        turns.result(text_at(block.get("tool_use_id"), f"{here}.tool_use_id"), _result(block, here))
    if said.parts:
        turns.say("user", said.content)


def _result(block: dict[str, Any], at: str) -> Parts:
    parts = Parts()
    content = block.get("content")
    if isinstance(content, str):
        parts.text(content)
    elif content is not None:
        for index, given in enumerate(list_at(content, f"{at}.content")):
            here = f"{at}.content[{index}]"
            _part(parts, object_at(given, here), here)
    return parts


def _part(parts: Parts, block: dict[str, Any], at: str) -> None:
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    match block.get("type"), source.get("type"):
        case "text", _:
            parts.text(text_at(block.get("text"), f"{at}.text"))
        case "image", "base64":
            parts.image(f"data:{source.get('media_type')};base64,{source.get('data')}")
        case "image", "url":
            parts.image(
                text_at(source.get("url"), f"{at}.source.url")
            )  # a `data:` URL: anything else was refused before
        case "document", "text":
            parts.text(text_at(source.get("data"), f"{at}.source.data"))
        case kind, _:
            raise refused(at, f"`{at}`: blocks of type {kind!r} are not supported.")


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = {"name": tool.get("name"), **sampling(tool, ("description", "strict"))}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema")}}


def _choice(choice: dict[str, Any]) -> Any:
    kind = choice.get("type")
    if kind == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    if not isinstance(kind, str) or kind not in CHOICES:
        raise refused(
            "tool_choice", f"tool_choice: {kind!r} is none of 'auto', 'any', 'tool', 'none'.", "invalid_value"
        )
    return CHOICES[kind]
