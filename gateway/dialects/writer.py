"""What the writer of a dialect's answer does, and the whole answer, made by the same writer: what is streamed and what is not
cannot differ."""

import secrets
from typing import Any, Protocol

import msgspec

from gateway.metering.usage import count_of
from gateway.relay.stream import UpstreamErrorEvent

ID_BYTES = 12

Chunk = dict[str, Any]


class Unspeakable(Exception):
    """The dialect has no words for what the model said."""


class Writer(Protocol):
    def chunk(self, chunk: Chunk) -> bytes:
        """The events for one chat chunk, the client's own view of it. Raises Unspeakable."""

    def done(self) -> bytes:
        """The last events, after the last chunk."""

    def error(self, error: UpstreamErrorEvent) -> bytes: ...

    def result(self) -> dict[str, Any]:
        """The whole answer, once `done` was called."""


def whole_answer(body: bytes, writer: Writer) -> bytes:
    """A chat completion in the writer's dialect. Raises Unspeakable."""
    completion: dict[str, Any] = msgspec.json.decode(body)
    choice = completion["choices"][0]
    message = dict(choice.get("message") or {})
    if message.get("tool_calls"):
        message["tool_calls"] = [{"index": n, **call} for n, call in enumerate(message["tool_calls"])]
    chunk = {**completion, "choices": [{**choice, "delta": message}]}
    writer.chunk(chunk)
    writer.done()
    return msgspec.json.encode(writer.result())


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(ID_BYTES)}"


def event(kind: str, body: dict[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode({"type": kind, **body}) + b"\n\n"


def counted(usage: dict[str, Any], name: str, detail: str | None = None) -> int:
    """A count of a chat usage; 0 where the engine left it out, or wrote what is none."""
    try:
        return count_of(usage, name) if detail is None else count_of(usage.get(name), detail)
    except ValueError:
        return 0
