"""Chat chunks as Responses events, and the response object: pure.

Items come in the order in which the model wrote: reasoning, message, calls. One item is open at a time; whatever opens the
next closes it, with the `done` events that repeat all of it, as the dialect has it.
"""

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.dialects.responses_request import CUSTOM_INPUT, ToolNames
from gateway.dialects.writer import Chunk, counted, event, new_id
from gateway.relay.stream import UpstreamErrorEvent

REASONING, MESSAGE, CALL = "reasoning", "message", "call"
ECHOED: dict[str, Any] = {
    "instructions": None, "max_output_tokens": None, "parallel_tool_calls": True, "temperature": None,
    "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [], "top_p": None, "reasoning": None,
    "metadata": {}, "user": None, "prompt_cache_key": None,
}  # fmt: skip
"""What of the request the response repeats, with what it says where the request does not."""
CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}


@dataclass
class _Open:
    kind: str
    item: dict[str, Any]
    text: list[str] = field(default_factory=list)
    index: int | None = None
    """Of a call, among the answer's calls."""


class ResponsesWriter:
    def __init__(self, asked: dict[str, Any], names: ToolNames, now: float | None = None) -> None:
        """`asked` is the client's own request."""
        self._names = names
        echoed = {name: absent if asked.get(name) is None else asked[name] for name, absent in ECHOED.items()}
        self._response: dict[str, Any] = {
            "id": new_id("resp"), "object": "response", "created_at": int(time.time() if now is None else now),
            "model": asked["model"], "status": "in_progress", "error": None, "incomplete_details": None,
            "output": [], "usage": None, "previous_response_id": None, "store": False, "background": False,
            "truncation": "disabled", **echoed,
        }  # fmt: skip
        self._items: list[dict[str, Any]] = []
        self._open: _Open | None = None
        self._sequence = 0
        self._finish: str | None = None

    def chunk(self, chunk: Chunk) -> bytes:
        out = b"" if self._sequence else self._start()
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            out += self._says(REASONING, delta.get("reasoning_content")) + self._says(MESSAGE, delta.get("content"))
            for entry in delta.get("tool_calls") or ():
                out += self._calls(entry)
            self._finish = choice.get("finish_reason") or self._finish
        if isinstance(chunk.get("usage"), dict):
            self._response["usage"] = _usage(chunk["usage"])
        return out

    def done(self) -> bytes:
        reason = CUT.get(self._finish or "")
        status = "completed" if reason is None else "incomplete"
        out = self._close(status)
        self._response["status"] = status
        self._response["incomplete_details"] = None if reason is None else {"reason": reason}
        self._response["output"] = self._items
        return out + self._event(f"response.{status}", response=self._response)

    def error(self, error: UpstreamErrorEvent) -> bytes:
        return self._event("error", code=str(error.status), message=error.message, param=None)

    def result(self) -> dict[str, Any]:
        return self._response

    def _start(self) -> bytes:
        return b"".join(
            self._event(kind, response=self._response) for kind in ("response.created", "response.in_progress")
        )

    def _event(self, kind: str, **body: Any) -> bytes:
        self._sequence += 1
        return event(kind, {**body, "sequence_number": self._sequence - 1})

    # ── text ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _says(self, kind: str, text: Any) -> bytes:
        if not text:
            return b""
        out = b""
        if self._open is None or self._open.kind != kind:
            if kind == REASONING:
                item = {"id": new_id("rs"), "type": "reasoning", "summary": [], "content": [], "status": "in_progress"}
            else:
                item = {"id": new_id("msg"), "type": "message", "role": "assistant", "content": [],
                        "status": "in_progress"}  # fmt: skip
            out = self._begin(kind, item)
            out += self._of_item("response.content_part.added", content_index=0, part=_part(kind, ""))
        assert self._open is not None
        self._open.text.append(text)
        if kind == REASONING:
            return out + self._of_item("response.reasoning_text.delta", content_index=0, delta=text)
        return out + self._of_item("response.output_text.delta", content_index=0, delta=text, logprobs=[])

    def _close_text(self, open_item: _Open, text: str) -> bytes:
        part = _part(open_item.kind, text)
        if open_item.kind == REASONING:
            out = self._of_item("response.reasoning_text.done", content_index=0, text=text)
        else:
            out = self._of_item("response.output_text.done", content_index=0, text=text, logprobs=[])
        open_item.item["content"] = [part]
        return out + self._of_item("response.content_part.done", content_index=0, part=part)

    # ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _calls(self, entry: dict[str, Any]) -> bytes:
        """Deltas of a call that comes in pieces have one index."""
        out = b""
        function = entry.get("function") or {}
        index = entry.get("index", 0)
        if self._open is None or self._open.kind != CALL or self._open.index != index:
            out = self._begin(CALL, self._call_item(str(entry.get("id") or ""), function.get("name") or ""))
            assert self._open is not None
            self._open.index = index
        written = function.get("arguments") or ""
        self._open.text.append(written)
        if not written or self._open.item["type"] == "custom_tool_call":
            return out  # a custom tool's input is known when the call is
        return out + self._of_item("response.function_call_arguments.delta", delta=written)

    def _call_item(self, call_id: str, name: str) -> dict[str, Any]:
        space, own = self._names.spaces.get(name, (None, name))
        named = {"call_id": call_id, "name": own} if space is None else {
            "call_id": call_id, "name": own, "namespace": space
        }  # fmt: skip
        if name in self._names.custom:
            return {"id": new_id("ctc"), "type": "custom_tool_call", **named, "input": "", "status": "in_progress"}
        return {"id": new_id("fc"), "type": "function_call", **named, "arguments": "", "status": "in_progress"}

    def _close_call(self, open_item: _Open, written: str) -> bytes:
        if open_item.item["type"] == "custom_tool_call":
            text = _custom_input(written)
            open_item.item["input"] = text
            out = self._of_item("response.custom_tool_call_input.delta", delta=text)
            return out + self._of_item("response.custom_tool_call_input.done", input=text)
        open_item.item["arguments"] = written
        return self._of_item("response.function_call_arguments.done", arguments=written, name=open_item.item["name"])

    # ── items ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, kind: str, item: dict[str, Any]) -> bytes:
        out = self._close("completed")
        self._open = _Open(kind, item)
        return out + self._event("response.output_item.added", output_index=len(self._items), item=item)

    def _of_item(self, kind: str, **body: Any) -> bytes:
        assert self._open is not None
        return self._event(kind, item_id=self._open.item["id"], output_index=len(self._items), **body)

    def _close(self, status: str) -> bytes:
        open_item = self._open
        if open_item is None:
            return b""
        text = "".join(open_item.text)
        out = self._close_call(open_item, text) if open_item.kind == CALL else self._close_text(open_item, text)
        open_item.item["status"] = status
        out += self._event("response.output_item.done", output_index=len(self._items), item=open_item.item)
        self._items.append(open_item.item)
        self._open = None
        return out


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == REASONING:
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _custom_input(written: str) -> str:
    """The text of a custom call; what is not the function's form is passed on as the model wrote it."""
    try:
        value = msgspec.json.decode(written)
    except msgspec.DecodeError:
        return written
    text = value.get(CUSTOM_INPUT) if isinstance(value, dict) else None
    return text if isinstance(text, str) else written


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """`cache_write_tokens`: nothing is charged for writing, and nobody counts it."""
    prompt, answer = counted(usage, "prompt_tokens"), counted(usage, "completion_tokens")
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": counted(usage, "prompt_tokens_details", "cached_tokens"),
            "cache_write_tokens": 0,
        },
        "output_tokens": answer,
        "output_tokens_details": {"reasoning_tokens": counted(usage, "completion_tokens_details", "reasoning_tokens")},
        "total_tokens": prompt + answer,
    }
