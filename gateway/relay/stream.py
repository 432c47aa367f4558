"""What of an upstream event stream reaches the client: a pure state machine over complete events.

Events are forwarded byte for byte but for this closed list (docs/api.md):
- the usage chunk is kept back when the client did not ask for it (the gateway always asks, to meter),
- the usage beside a chunk's choices is taken out (the gateway asks for it, to know early),
- a chunk's `nvext` (Dynamo's own extension) is taken out,
- an upstream error, in any of the shapes Dynamo gives it, becomes one OpenAI error event,
- a stream that ends without a finish reason gets an error event: an SDK takes a stream that just ends for a success,
- `data: [DONE]` closes every stream, once; nothing after it is forwarded.

JSON is parsed only in events that a byte search says may need it.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from gateway.metering.usage import Usage, usage_of
from gateway.relay.chunk import NO_CHUNK, is_chunk
from gateway.relay.sse import DONE, data_of, event_of, field_of

_FINISH_MARK = re.compile(rb'"finish_reason"\s*:\s*"')
_OF_INTEREST = re.compile(rb'"(?:usage"(?!:null)|nvext"|error"|finish_reason"(?!:null))')
"""What makes an event more than a piece of text, and more: one search for what most events have none of. A quote inside a JSON
string is escaped, so none of these can be met in a model's text."""
_RUNNING_USAGE = re.compile(rb',"usage":(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class StreamEnd(StrEnum):
    """How an upstream stream ended. Closed: used as a metric label."""

    COMPLETE = "complete"
    UPSTREAM_ERROR = "upstream_error"
    TRUNCATED = "truncated"
    MODEL_ERROR = "model_error"
    """The answer itself is of no use (a tool call that the model did not finish); the deployment is well."""


@dataclass(frozen=True)
class UpstreamErrorEvent:
    """An error that arrived inside a stream. `status` is what it would have been as an HTTP answer."""

    status: int
    message: str


class Editor(Protocol):
    """What the relay needs of an endpoint's editor."""

    began: bool
    ending: StreamEnd | None
    timing: dict[str, Any] | None
    error: UpstreamErrorEvent | None

    @property
    def usage(self) -> Usage | None: ...

    @property
    def closed(self) -> bool: ...

    def feed(self, event: bytes) -> bytes: ...

    def end(self) -> bytes: ...

    def fail(self, error: UpstreamErrorEvent, ending: StreamEnd = ...) -> bytes: ...


class StreamEditor:
    """Feed it complete events in order; it returns the bytes to send. `usage`, `timing` and `error` fill up on the way;
    `began` says that an event of the model's answer has been let through."""

    def __init__(self, *, forward_usage: bool) -> None:
        self._forward_usage = forward_usage
        self._identity: dict[str, Any] = {}
        self._finished = False
        self._done = False
        self.began = False
        self.ending: StreamEnd | None = None
        self._usage: Usage | None = None
        self._running_usage = b""
        self.timing: dict[str, Any] | None = None
        self.error: UpstreamErrorEvent | None = None

    @property
    def closed(self) -> bool:
        """Nothing more will be forwarded."""
        return self._done

    @property
    def usage(self) -> Usage | None:
        """The latest. Read only when somebody asks: most streams send hundreds."""
        if self._running_usage:
            running, self._running_usage = self._running_usage, b""
            try:
                said = usage_of(_decode(running))
            except msgspec.DecodeError:
                said = None
            # Numbers that are none: what was known before stands, and closing a stream must not fail on it.
            self._usage = said or self._usage
        return self._usage

    def feed(self, event: bytes) -> bytes:
        """The bytes to send for this event: the event itself, an edited one, or nothing."""
        if self._done:
            return b""
        if self._identity and event.startswith(b"data: {") and _OF_INTEREST.search(event) is None:
            return event
        return self._judged(event)

    def end(self) -> bytes:
        """The stream is over: what closes it. Empty when it is closed already."""
        if self._done:
            return b""
        if not self._finished:
            return self.fail(
                UpstreamErrorEvent(502, "the stream ended before the model had finished"), StreamEnd.TRUNCATED
            )
        self._done = True
        self.ending = StreamEnd.COMPLETE
        return event_of(DONE)

    def fail(self, error: UpstreamErrorEvent, ending: StreamEnd = StreamEnd.UPSTREAM_ERROR) -> bytes:
        """Close the stream with an error, found in it or outside of it (a timeout, a lost connection)."""
        if self._done:
            return b""
        self._done = True
        self.error = error
        self.ending = ending
        return self._error_event(error) + event_of(DONE)

    def _judged(self, event: bytes) -> bytes:
        data = data_of(event)
        if data is None:
            return self._without_data(event)
        if not event.startswith(b"data:") and field_of(event, b"event") == b"error" and b'"error"' not in data:
            return self.fail(UpstreamErrorEvent(502, data.decode(errors="replace")[:500]))
        if data == DONE:
            return self.end()
        if b'"usage":{' in data and b'"choices":[]' not in data:
            event, data = self._without_running_usage(event, data)
        if not self._needs_a_look(data):
            return event
        edited = self._look(event, data)
        self.began = self.began or self.error is None
        return edited

    def _without_running_usage(self, event: bytes, data: bytes) -> tuple[bytes, bytes]:
        """Cut out as bytes; where it is not written as Dynamo writes it, `_look` finds it."""
        found = _RUNNING_USAGE.search(data)
        if found is None:
            return event, data
        self._running_usage = found[1]
        data = data[: found.start()] + data[found.end() :]
        return event_of(data), data

    def _needs_a_look(self, data: bytes) -> bool:
        if not self._identity:
            return True
        if _FINISH_MARK.search(data):
            self._finished = True
        has_usage = b'"usage"' in data and b'"usage":null' not in data
        return has_usage or b'"nvext"' in data or b'"error"' in data

    def _look(self, event: bytes, data: bytes) -> bytes:
        try:
            chunk = _decode(data)
        except msgspec.DecodeError:
            return self.fail(UpstreamErrorEvent(502, "an upstream event was not JSON"))
        if isinstance(chunk, dict) and chunk.get("error"):
            return self.fail(_error_in(chunk["error"]))
        if not is_chunk(chunk):
            return self.fail(UpstreamErrorEvent(502, NO_CHUNK))
        if not self._identity:
            self._identity = {key: chunk[key] for key in ("id", "object", "created", "model") if key in chunk}
        choices = chunk.get("choices") or []
        for choice in choices:
            reason = choice.get("finish_reason")
            if reason == "error":
                return self.fail(UpstreamErrorEvent(500, "the engine failed while generating"))
            if reason:
                self._finished = True
        return self._forward(event, chunk, choices)

    def _forward(self, event: bytes, chunk: dict[str, Any], choices: list[Any]) -> bytes:
        if isinstance(chunk.get("usage"), dict):
            self._usage, self._running_usage = usage_of(chunk["usage"]) or self.usage, b""
            if not self._forward_usage:
                if not choices:
                    self._take_extension(chunk)
                    return b""
                del chunk["usage"]
                self._take_extension(chunk)
                return event_of(_encode(chunk))
        if self._take_extension(chunk):
            return event_of(_encode(chunk))
        return event

    def _take_extension(self, chunk: dict[str, Any]) -> bool:
        extension = chunk.pop("nvext", None)
        if extension is None:
            return False
        if isinstance(extension, dict) and isinstance(extension.get("timing"), dict):
            self.timing = extension["timing"]
        return True

    def _without_data(self, event: bytes) -> bytes:
        if field_of(event, b"event") == b"error":
            # Dynamo 1.x on a dead worker: an event without data, its message in a comment.
            comment = field_of(event, b"") or b""
            return self.fail(UpstreamErrorEvent(502, comment.decode(errors="replace") or "the engine failed"))
        # Comments keep the connection alive; a lone id:, retry: or unknown event: makes SDK decoders fail.
        return event if event.startswith(b":") else b""

    def _error_event(self, error: UpstreamErrorEvent) -> bytes:
        text = {"text": ""} if self._identity.get("object") == "text_completion" else {"delta": {"content": ""}}
        body = {
            **self._identity,
            "choices": [{"index": 0, **text, "finish_reason": "error"}],
            "error": {"message": error.message, "type": "server_error", "param": None, "code": str(error.status)},
        }
        return event_of(_encode(body))


def _error_in(error: object) -> UpstreamErrorEvent:
    """Dynamo's `{"message", "type", "code": int}`, or a bare string."""
    if isinstance(error, dict):
        code = error.get("code")
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
        return UpstreamErrorEvent(status, str(error.get("message") or "the engine failed"))
    return UpstreamErrorEvent(500, str(error))
