"""Calls in Responses and Messages that a frontend has parsed: the bytes pass, and what they say is judged at the end."""

from typing import Any

import msgspec

from gateway.dialects.messages_answer import STOP_REASONS
from gateway.relay.sse import data_of
from gateway.relay.stream import StreamEnd, UpstreamErrorEvent
from gateway.relay.typed_stream import Dialect, TypedEditor
from gateway.toolcalls.books import Books

_decode = msgspec.json.Decoder().decode
FINISHES = {theirs: ours for ours, theirs in STOP_REASONS.items()}
OF_INTEREST = (
    b'"tool_use"',
    b'"input_json_delta"',
    b'"message_delta"',
    b'"response.completed"',
    b'"response.incomplete"',
)
"""What an event must hold to be read. A quote inside a JSON string is escaped, so that a model's text is never met here."""


def calls_in_response(response: dict[str, Any]) -> dict[str, Any]:
    """A response object as the one chat chunk that says the same of its calls."""
    items = [item for item in _objects(response.get("output")) if item.get("type") == "function_call"]
    entries = [_entry(n, item.get("call_id"), item.get("name"), item.get("arguments")) for n, item in enumerate(items)]
    finish = "length" if response.get("status") == "incomplete" else "tool_calls" if entries else "stop"
    return _chunk(entries, finish)


def calls_in_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message object as the one chat chunk that says the same of its calls."""
    blocks = [block for block in _objects(message.get("content")) if block.get("type") == "tool_use"]
    entries = [
        _entry(n, block.get("id"), block.get("name"), msgspec.json.encode(block.get("input")).decode())
        for n, block in enumerate(blocks)
    ]
    return _chunk(entries, FINISHES.get(_text(message.get("stop_reason")), "stop"))


def _entry(index: int, call_id: Any, name: Any, arguments: Any) -> dict[str, Any]:
    return {"index": index, "id": _text(call_id), "function": {"name": _text(name), "arguments": _text(arguments)}}


def _text(value: Any) -> str:
    """What an engine writes in place of a text counts as none: it is only judged here."""
    return value if isinstance(value, str) else ""


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _chunk(entries: list[dict[str, Any]], finish: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"tool_calls": entries}, "finish_reason": finish}]}


class PassingEditor(TypedEditor):
    def __init__(self, dialect: Dialect, books: Books) -> None:
        super().__init__(dialect)
        self._books = books
        self._calls: dict[int, dict[str, Any]] = {}
        self._response: dict[str, Any] | None = None
        self._stop_reason: str | None = None

    def feed(self, event: bytes) -> bytes:
        if not self.closed and any(mark in event for mark in OF_INTEREST):
            self._read(event)
        sent = super().feed(event)
        if self.ending is StreamEnd.COMPLETE:
            self._books.saw(self._judged())
            self._books.close()
        return sent

    def fail(self, error: UpstreamErrorEvent, ending: StreamEnd = StreamEnd.UPSTREAM_ERROR) -> bytes:
        if self.began:
            self._books.close()
        return super().fail(error, ending)

    def _read(self, event: bytes) -> None:
        try:
            body = _decode(data_of(event) or b"null")
        except msgspec.DecodeError:
            return  # the relay's to say
        match body:
            case {"type": "response.completed" | "response.incomplete", "response": dict(response)}:
                self._response = response
            case {"type": "content_block_start", "index": int(index), "content_block": {"type": "tool_use", **block}}:
                self._calls[index] = _entry(len(self._calls), block.get("id"), block.get("name"), "")
            case {"type": "content_block_delta", "index": int(index), "delta": {"partial_json": str(part)}}:
                if index in self._calls:
                    self._calls[index]["function"]["arguments"] += part
            case {"type": "message_delta", "delta": {"stop_reason": str(reason)}}:
                self._stop_reason = reason

    def _judged(self) -> dict[str, Any]:
        if self._response is not None:
            return calls_in_response(self._response)
        for call in self._calls.values():
            call["function"]["arguments"] = call["function"]["arguments"] or "{}"
        return _chunk(list(self._calls.values()), FINISHES.get(self._stop_reason or "", "stop"))
