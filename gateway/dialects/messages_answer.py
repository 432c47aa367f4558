"""Chat chunks as Anthropic's events, and the message object: pure.

A call leaves whole: its block opens, one `input_json_delta` brings all of it, and the block is closed. Thinking has no
signature, since nobody here signs it.
"""

from typing import Any

import msgspec

from gateway.dialects.writer import Chunk, Unspeakable, counted, event, new_id
from gateway.relay.stream import UpstreamErrorEvent
from gateway.relay.typed_stream import MESSAGES

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
TEXT, THINKING = "text", "thinking"


class MessagesWriter:
    def __init__(self, model: str) -> None:
        self._message: dict[str, Any] = {
            "id": new_id("msg"), "type": "message", "role": "assistant", "model": model, "content": [],
            "stop_reason": None, "stop_sequence": None,
            "usage": {"input_tokens": 0, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0,
                      "output_tokens": 0},
        }  # fmt: skip
        self._blocks: list[dict[str, Any]] = []
        self._open: str | None = None
        self._call: tuple[int, str] | None = None
        """Index and JSON so far of the call whose block is open."""
        self._started = False

    def chunk(self, chunk: Chunk) -> bytes:
        out = b"" if self._started else self._start()
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            out += self._says(THINKING, delta.get("reasoning_content")) + self._says(TEXT, delta.get("content"))
            for entry in delta.get("tool_calls") or ():
                out += self._calls(entry)
            if choice.get("finish_reason"):
                self._message["stop_reason"] = STOP_REASONS.get(choice["finish_reason"], "end_turn")
        if isinstance(chunk.get("usage"), dict):
            self._take_usage(chunk["usage"])
        return out

    def done(self) -> bytes:
        delta = {name: self._message[name] for name in ("stop_reason", "stop_sequence")}
        out = self._close() + event("message_delta", {"delta": delta, "usage": self._message["usage"]})
        return out + event("message_stop", {})

    def error(self, error: UpstreamErrorEvent) -> bytes:
        body = MESSAGES.error(error)
        return event("error", {name: value for name, value in body.items() if name != "type"})

    def result(self) -> dict[str, Any]:
        return {**self._message, "content": self._blocks}

    def _start(self) -> bytes:
        self._started = True
        return event("message_start", {"message": self._message})

    def _says(self, kind: str, text: Any) -> bytes:
        if not text:
            return b""
        out = b""
        if self._open != kind:
            empty = {"type": kind, kind: ""} if kind == TEXT else {"type": kind, kind: "", "signature": ""}
            out = self._close() + self._begin(kind, empty)
        self._blocks[-1][kind] += text
        return out + self._delta({"type": f"{kind}_delta", kind: text})

    def _calls(self, entry: dict[str, Any]) -> bytes:
        """Deltas of a call that comes in pieces have one index."""
        out = b""
        function = entry.get("function") or {}
        if self._call is None or self._call[0] != entry.get("index"):
            out = self._close() + self._begin("tool_use", _tool_use(entry.get("id"), function.get("name")))
            self._call = (entry.get("index", 0), "")
        written = function.get("arguments") or ""
        self._call = (self._call[0], self._call[1] + written)
        return out + (self._delta({"type": "input_json_delta", "partial_json": written}) if written else b"")

    def _begin(self, kind: str, block: dict[str, Any]) -> bytes:
        self._open = kind
        self._blocks.append(dict(block))
        return event("content_block_start", {"index": len(self._blocks) - 1, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return event("content_block_delta", {"index": len(self._blocks) - 1, "delta": delta})

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        if self._call is not None:
            self._blocks[-1]["input"] = _input(self._call[1])
            self._call = None
        self._open = None
        return event("content_block_stop", {"index": len(self._blocks) - 1})

    def _take_usage(self, usage: dict[str, Any]) -> None:
        """Anthropic counts what was read from the cache beside the input, not within it."""
        cached = counted(usage, "prompt_tokens_details", "cached_tokens")
        self._message["usage"] = {
            "input_tokens": max(0, counted(usage, "prompt_tokens") - cached),
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": counted(usage, "completion_tokens"),
        }


def _tool_use(call_id: Any, name: Any) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": "toolu_" + str(call_id or "").removeprefix("call_"),
        "name": name or "",
        "input": {},
    }


def _input(written: str) -> dict[str, Any]:
    """`input` is an object in this dialect. Raises Unspeakable for a call whose arguments are none."""
    try:
        value = msgspec.json.decode(written or "{}")
    except msgspec.DecodeError as error:
        raise Unspeakable("the model wrote a tool call whose arguments are not JSON") from error
    if not isinstance(value, dict):
        raise Unspeakable("the model wrote a tool call whose arguments are no object")
    return value
