"""A whole answer's body, checked and metered: pure. One reader an endpoint."""

from typing import Any

import msgspec

from gateway.metering.usage import Usage, usage_of
from gateway.relay.causes import AttemptFailed, Cause
from gateway.relay.chunk import is_chunk
from gateway.relay.typed_stream import messages_usage, responses_usage


class Whole(msgspec.Struct, frozen=True):
    body: bytes
    usage: Usage | None
    timing: dict[str, Any] | None = None


def chat_answer(body: bytes) -> Whole:
    """A chat or text completion, without Dynamo's `nvext`. Raises AttemptFailed for what is none."""
    parsed = _object(body)
    if not is_chunk(parsed):
        raise AttemptFailed(Cause.GARBAGE, "the deployment's answer was no completion")
    if not parsed.get("choices"):
        raise AttemptFailed(Cause.EMPTY, "the deployment's answer holds no choice")
    if any(choice.get("finish_reason") == "error" for choice in parsed["choices"]):
        raise AttemptFailed(Cause.SERVER_ERROR, "the engine failed while generating")
    extension = parsed.pop("nvext", None)
    if extension is not None:
        body = msgspec.json.encode(parsed)
    timing = extension.get("timing") if isinstance(extension, dict) else None
    usage = usage_of(parsed["usage"]) if isinstance(parsed.get("usage"), dict) else None
    return Whole(body, usage, timing)


def responses_answer(body: bytes) -> Whole:
    parsed = _object(body)
    if parsed.get("status") == "failed":
        raise AttemptFailed(Cause.SERVER_ERROR, "the engine failed while generating")
    if not isinstance(parsed.get("output"), list):
        raise AttemptFailed(Cause.EMPTY, "the deployment's answer holds no output")
    usage = parsed.get("usage")
    return Whole(body, responses_usage(usage) if isinstance(usage, dict) else None)


def messages_answer(body: bytes) -> Whole:
    parsed = _object(body)
    if not isinstance(parsed.get("content"), list):
        raise AttemptFailed(Cause.EMPTY, "the deployment's answer holds no content")
    usage = parsed.get("usage")
    return Whole(body, messages_usage(usage) if isinstance(usage, dict) else None)


def _object(body: bytes) -> dict[str, Any]:
    try:
        parsed = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise AttemptFailed(Cause.GARBAGE, "the deployment's answer was not JSON") from error
    if not isinstance(parsed, dict):
        raise AttemptFailed(Cause.EMPTY, "the deployment's answer was no object")
    return parsed
