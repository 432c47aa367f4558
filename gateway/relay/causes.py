"""Why an attempt at a deployment failed, and what a status from Dynamo means: pure."""

from enum import StrEnum
from typing import Any

import msgspec

from gateway.breaker import Ending
from gateway.errors import ApiError, InvalidRequest, Overloaded, Unavailable, UpstreamFailed, UpstreamTimeout

DYNAMO_BUSY_STATUS = 529
"""Dynamo's own status for "every worker is busy" since 1.3; clients and OpenRouter know 429."""

DYNAMO_CANNOT_STATUS = 501
"""Dynamo's word for a parameter that it does not serve (`functions`): every deployment would say the same of it, and none of
them is ill. Taken for a fault it would let any client open every breaker."""

BUSY_RETRY_AFTER_S = 2.0
"""Long enough for a decode slot to free, short enough that OpenRouter's fallback is not all a client sees."""

UNAVAILABLE_RETRY_AFTER_S = 5.0
"""A worker restarts in tens of seconds; SDKs retry twice, so ask them to spread that."""


class Cause(StrEnum):
    """Closed: used as a metric label. What each means for the client is in `error_for`."""

    CONNECT = "connect"
    FIRST_EVENT_TIMEOUT = "first_event_timeout"
    SERVER_ERROR = "server_error"
    UNAVAILABLE = "unavailable"
    BUSY = "busy"
    LOST = "lost"
    EMPTY = "empty"
    GARBAGE = "garbage"
    REFUSED_US = "refused_us"
    """401 or 403 to the gateway itself: a wrong configuration here."""
    CLOSED_OFF = "closed_off"
    """Not sent: its breaker is open."""
    FULL = "full"
    """Not sent: admission had no capacity there."""


ENDINGS = {
    Cause.CONNECT: Ending.CONNECT_FAILED,
    Cause.FIRST_EVENT_TIMEOUT: Ending.FIRST_EVENT_TIMEOUT,
    Cause.SERVER_ERROR: Ending.UPSTREAM_ERROR,
    Cause.UNAVAILABLE: Ending.UPSTREAM_ERROR,
    Cause.BUSY: Ending.BUSY,
    Cause.LOST: Ending.TRUNCATED_STREAM,
    Cause.EMPTY: Ending.EMPTY_RESPONSE,
    Cause.GARBAGE: Ending.UPSTREAM_ERROR,
    Cause.REFUSED_US: Ending.UPSTREAM_REFUSED_US,
}
"""What each cause of an attempt that was sent says to its breaker."""


class AttemptFailed(Exception):
    """An attempt that another deployment may do better."""

    def __init__(self, cause: Cause, message: str, error: ApiError | None = None) -> None:
        """`error` is what the client gets if this decides, where the cause alone does not say it."""
        super().__init__(message)
        self.cause = cause
        self.message = message
        self.error = error


def error_for(failures: list[AttemptFailed]) -> ApiError:
    """What the client sees when every attempt failed, or none could be made: the kindest cause wins, since one busy
    deployment means that waiting helps. A connection that broke before any answer is a worker or frontend that went
    away: unavailable, too."""
    causes = {failure.cause for failure in failures}
    full = next((failure.error for failure in failures if failure.cause is Cause.FULL and failure.error), None)
    if full is not None:
        return full
    if Cause.BUSY in causes:
        return Overloaded("All workers of this model are busy; try again shortly.", retry_after_s=BUSY_RETRY_AFTER_S)
    if causes <= {Cause.UNAVAILABLE, Cause.CONNECT, Cause.LOST, Cause.CLOSED_OFF}:
        return Unavailable(
            "The model is not available at the moment; try again shortly.", retry_after_s=UNAVAILABLE_RETRY_AFTER_S
        )
    if causes <= {Cause.FIRST_EVENT_TIMEOUT, Cause.CLOSED_OFF}:
        return UpstreamTimeout("The model did not begin to answer in time.")
    sent = [failure for failure in failures if failure.cause is not Cause.CLOSED_OFF]
    return UpstreamFailed(f"The model could not answer: {sent[-1].message}")


NO_WORKER_TOOK_IT = b"Failed to generate completions"
"""Dynamo 1.6's 500 at once when the worker it chose has just gone, until it knows: nothing was generated."""


def cause_of_status(status: int, body: bytes = b"") -> Cause | None:
    """The cause of an upstream status that another attempt may cure; None for one that is the client's own."""
    if status == 500 and NO_WORKER_TOOK_IT in body:
        return Cause.UNAVAILABLE
    if status == DYNAMO_CANNOT_STATUS:
        return None
    if status in (DYNAMO_BUSY_STATUS, 429):
        return Cause.BUSY
    if status in (503, 404, 405):
        # The fleet file says that the model is served there: a 404 means that its workers have not registered.
        return Cause.UNAVAILABLE
    if status in (401, 403):
        return Cause.REFUSED_US
    return Cause.SERVER_ERROR if status >= 500 else None


def client_error(status: int, body: bytes) -> ApiError:
    """Dynamo's refusal of the request itself, in OpenAI's shape. Dynamo sends `{"message", "type", "code"}`, for a
    prompt that is too long with `details`."""
    message, details = _read_refusal(body)
    if details.get("type") == "context_length":
        limit, actual = details.get("limit"), details.get("actual")
        return InvalidRequest(
            f"This model's maximum context length is {limit} tokens, but the request needs {actual}"
            " (prompt and max_tokens together).",
            param="messages",
            code="context_length_exceeded",
        )
    return InvalidRequest(message or f"The model refused the request ({status}).", code="invalid_value")


def _read_refusal(body: bytes) -> tuple[str, dict[str, Any]]:
    try:
        parsed = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body.decode(errors="replace")[:500], {}
    if not isinstance(parsed, dict):
        return str(parsed)[:500], {}
    inner = parsed.get("error")
    source = inner if isinstance(inner, dict) else parsed
    details = source.get("details")
    message = str(source.get("message") or "").removeprefix("Validation: ")
    return message, details if isinstance(details, dict) else {}
