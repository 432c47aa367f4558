"""What a chat or text completion, whole or a chunk of a stream, must look like for the gateway to read it: pure.

An engine or a proxy before it may answer JSON that is no completion. Who reads it then fails somewhere in the middle, and
the client gets an error of ours in place of another deployment's answer. So the shape is looked at once, here.
"""

from typing import Any

import msgspec

NO_CHUNK = "an upstream event was no chunk of a completion"


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct):
    """A delta, or a whole message."""

    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    index: int | None = None
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice] | None = None


def is_chunk(body: Any) -> bool:
    """Whether the parts that the gateway reads are what they should be, where they are there at all."""
    try:
        msgspec.convert(body, _Completion)
    except msgspec.ValidationError:
        return False
    return True
