"""What of a Responses or Messages stream reaches the client: a pure state machine over complete events.

Their events carry a type, and the last one is of a known type; there is no `[DONE]`. Forwarded byte for byte but for:
- events of the preamble (the answer's empty object) wait for the first event with content, so that failover is still
  possible while the deployment only queues,
- an upstream error in any shape becomes one error event of the dialect,
- a stream that ends without its last event gets such an error event,
- events without data that are no comments, and `[DONE]`, are dropped.

JSON is parsed only in events that a byte search says may need it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.metering.usage import Usage, count_of
from gateway.relay.sse import DONE, data_of, field_of
from gateway.relay.stream import StreamEnd, UpstreamErrorEvent

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True)
class Dialect:
    preamble: frozenset[str]
    last: frozenset[str]
    failed: frozenset[str]
    """Last events that say the engine failed; forwarded, since they are the dialect's own words."""
    usage: Callable[[dict[str, Any], Usage | None], Usage | None]
    """What an event says of the usage, given what was known before it."""
    error: Callable[[UpstreamErrorEvent], dict[str, Any]]
    """The error event's data."""


class TypedEditor:
    """Feed it complete events in order; it returns the bytes to send."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._held: list[bytes] = []
        self._done = False
        self.began = False
        self.ending: StreamEnd | None = None
        self.usage: Usage | None = None
        self.timing: dict[str, Any] | None = None
        self.error: UpstreamErrorEvent | None = None

    @property
    def closed(self) -> bool:
        return self._done

    def feed(self, event: bytes) -> bytes:
        if self._done:
            return b""
        data = data_of(event)
        if data is None:
            return self._without_data(event)
        if data == DONE:
            return b""
        # A quote inside a JSON string is escaped, so a model's text is never met here.
        if self.began and not (b'"usage"' in data or b'"error"' in data or self._may_be_last(data)):
            return event
        return self._look(event, data)

    def end(self) -> bytes:
        if self._done:
            return b""
        return self.fail(UpstreamErrorEvent(502, "the stream ended before the model had finished"), StreamEnd.TRUNCATED)

    def fail(self, error: UpstreamErrorEvent, ending: StreamEnd = StreamEnd.UPSTREAM_ERROR) -> bytes:
        if self._done:
            return b""
        self._done = True
        self.error = error
        self.ending = ending
        return b"event: error\ndata: " + _encode(self._dialect.error(error)) + b"\n\n"

    def _may_be_last(self, data: bytes) -> bool:
        return any(kind.encode() in data for kind in self._dialect.last)

    def _look(self, event: bytes, data: bytes) -> bytes:
        try:
            body = _decode(data)
        except msgspec.DecodeError:
            return self.fail(UpstreamErrorEvent(502, "an upstream event was not JSON"))
        if not isinstance(body, dict):
            return self.fail(UpstreamErrorEvent(502, "an upstream event was no object"))
        kind = body.get("type")
        if kind == "error" or not isinstance(kind, str):
            return self.fail(_error_in(body))
        self.usage = self._dialect.usage(body, self.usage)
        if kind in self._dialect.preamble and not self.began:
            self._held.append(event)
            return b""
        self.began = True
        held, self._held = self._held, []
        if kind in self._dialect.last:
            self._done = True
            self.ending = StreamEnd.UPSTREAM_ERROR if kind in self._dialect.failed else StreamEnd.COMPLETE
        return b"".join([*held, event])

    def _without_data(self, event: bytes) -> bytes:
        if field_of(event, b"event") == b"error":
            comment = field_of(event, b"") or b""
            return self.fail(UpstreamErrorEvent(502, comment.decode(errors="replace") or "the engine failed"))
        return event if event.startswith(b":") and self.began else b""


def _error_in(body: dict[str, Any]) -> UpstreamErrorEvent:
    """An error event of either dialect, or Dynamo's own `{"error": {"message", "code"}}`."""
    inner = body.get("error")
    source = inner if isinstance(inner, dict) else body
    code = source.get("code")
    status = (
        int(code) if isinstance(code, int) or (isinstance(code, str) and code.isascii() and code.isdigit()) else 500
    )
    message = str(source.get("message") or inner or "the engine failed")
    return UpstreamErrorEvent(status if 400 <= status < 600 else 500, message)


def responses_usage(usage: dict[str, Any]) -> Usage | None:
    """The `usage` of a response object; None for what are no counts."""
    try:
        return Usage(
            prompt_tokens=count_of(usage, "input_tokens"),
            completion_tokens=count_of(usage, "output_tokens"),
            cached_tokens=count_of(usage.get("input_tokens_details"), "cached_tokens"),
            reasoning_tokens=count_of(usage.get("output_tokens_details"), "reasoning_tokens"),
        )
    except ValueError:
        return None


def _usage_of_response_event(body: dict[str, Any], known: Usage | None) -> Usage | None:
    response = body.get("response")
    usage = response.get("usage") if isinstance(response, dict) else None
    return (responses_usage(usage) or known) if isinstance(usage, dict) else known


def _response_error(error: UpstreamErrorEvent) -> dict[str, Any]:
    return {"type": "error", "code": str(error.status), "message": error.message, "param": None}


def messages_usage(usage: dict[str, Any], known: Usage | None = None) -> Usage | None:
    """Anthropic counts what was read from the cache, and what was written to it, beside the input and not within it.
    Dynamo's first event guesses the input from its length and says nothing of the cache. What are no counts change
    nothing of what was known."""
    told = "cache_read_input_tokens" in usage
    try:
        cached = count_of(usage, "cache_read_input_tokens")
        prompt = count_of(usage, "input_tokens") + cached + count_of(usage, "cache_creation_input_tokens")
        answer = count_of(usage, "output_tokens")
    except ValueError:
        return known
    if known is not None and not prompt:
        prompt, cached, told = known.prompt_tokens, known.cached_tokens, known.cached_known
    return Usage(prompt, answer, cached, 0, told)


def _usage_of_message_event(body: dict[str, Any], known: Usage | None) -> Usage | None:
    message = body.get("message")
    usage = message.get("usage") if isinstance(message, dict) else body.get("usage")
    return messages_usage(usage, known) if isinstance(usage, dict) else known


ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def anthropic_error(status: int, message: str) -> dict[str, Any]:
    """An error as Anthropic's SDKs read it, in a body or in a stream."""
    kind = ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


RESPONSES = Dialect(
    preamble=frozenset({"response.created", "response.queued", "response.in_progress"}),
    last=frozenset({"response.completed", "response.incomplete", "response.failed"}),
    failed=frozenset({"response.failed"}),
    usage=_usage_of_response_event,
    error=_response_error,
)

MESSAGES = Dialect(
    preamble=frozenset({"message_start", "ping"}),
    last=frozenset({"message_stop"}),
    failed=frozenset(),
    usage=_usage_of_message_event,
    error=lambda error: anthropic_error(error.status, error.message),
)
