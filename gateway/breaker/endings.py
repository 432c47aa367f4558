"""How an attempt at a deployment can end, and which endings speak against the deployment."""

from enum import StrEnum


class Ending(StrEnum):
    """Closed set, used as a metric label."""

    SUCCEEDED = "succeeded"
    CONNECT_FAILED = "connect_failed"
    FIRST_EVENT_TIMEOUT = "first_event_timeout"
    UPSTREAM_ERROR = "upstream_error"
    """500, 502, 503, 504 and their kin. 503 is Dynamo's "no workers"; its "all busy" is 529."""
    TRUNCATED_STREAM = "truncated_stream"
    """The stream broke, went silent past the idle timeout or ended without a finish reason."""
    EMPTY_RESPONSE = "empty_response"
    """A 200 with nothing in it."""
    BUSY = "busy"
    """529: load, not illness. Counting it would open breakers exactly when every deployment is needed."""
    REQUEST_REJECTED = "request_rejected"
    """Another 4xx: the client's doing."""
    UPSTREAM_REFUSED_US = "upstream_refused_us"
    """401 or 403 from our own upstream: a wrong configuration here. An alarm, and no reason to move traffic."""
    CLIENT_GONE = "client_gone"
    TOO_LITTLE_TIME = "too_little_time"
    """The client's deadline came before the deployment's own time was up: no proof of anything."""


COUNTED = frozenset(
    {
        Ending.CONNECT_FAILED,
        Ending.FIRST_EVENT_TIMEOUT,
        Ending.UPSTREAM_ERROR,
        Ending.TRUNCATED_STREAM,
        Ending.EMPTY_RESPONSE,
    }
)

BUSY_STATUS = 529
OUR_FAULT_STATUSES = (401, 403)


def ending_of_status(status: int) -> Ending:
    """The ending of an attempt that got this HTTP status (a 2xx may still be truncated or empty)."""
    if status == BUSY_STATUS:
        return Ending.BUSY
    if status >= 500:
        return Ending.UPSTREAM_ERROR
    if status in OUR_FAULT_STATUSES:
        return Ending.UPSTREAM_REFUSED_US
    if status >= 400:
        return Ending.REQUEST_REJECTED
    return Ending.SUCCEEDED
