"""A chat's earlier turns in words that GLM's chat template and Dynamo take: pure.

Seen with Dynamo 1.6.1: a past call whose arguments are no JSON object is a 400, and such calls do reach clients (one that
broke the form is passed on as the model wrote it, and SDKs send an empty text where there are no arguments), so that an
agent could never go on. GLM's templates know no `developer`, whose message would be left out of the prompt, and write
nothing at all for a tool's answer that is a list of no parts.
"""

from typing import Any

import msgspec

_decode = msgspec.json.Decoder().decode

UNREAD = "arguments"
"""The key under which a past call shows arguments that are no object: the model's own text, whole."""


def for_template(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What needs no change is passed on as the same object."""
    return [_turn(message) for message in messages]


def _turn(message: dict[str, Any]) -> dict[str, Any]:
    match message:
        case {"role": "developer"}:
            return {**message, "role": "system"}
        case {"role": "tool", "content": []}:
            return {**message, "content": ""}
        case {"role": "assistant", "tool_calls": list(calls)}:
            return {**message, "tool_calls": [_call(call) for call in calls]}
    return message


def _call(call: Any) -> Any:
    match call:
        case {"function": {"arguments": str(arguments)} as function}:
            return {**call, "function": {**function, "arguments": readable(arguments)}}
    return call


def readable(arguments: str) -> str:
    """The same text if it is the JSON of an object that Dynamo reads, else the JSON of one that holds it."""
    if arguments.strip() in ("", "null"):
        return "{}"
    try:
        if isinstance(_decode(arguments), dict):
            return arguments
    except (msgspec.DecodeError, RecursionError):  # a number out of range and half a surrogate pair among them
        pass
    return msgspec.json.encode({UNREAD: arguments}).decode()
