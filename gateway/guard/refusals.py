"""Admission's refusals in OpenAI's words: pure."""

from gateway.admission import Outcome, Refused
from gateway.errors import ApiError, Overloaded, Unavailable

_LIMITED = {
    Outcome.REQUEST_LIMIT: "This key's limit of requests per minute is reached.",
    Outcome.TOKEN_LIMIT: "This key's limit of tokens per minute is reached.",
    Outcome.OVER_TOKEN_LIMIT: "This request alone is larger than this key's tokens per minute; retrying does not help.",
}

DRAINING_RETRY_S = 1.0
"""Another replica takes it; the load balancer knows within its next look."""


def is_final(refused: Refused) -> bool:
    """Whether asking another deployment is of no use: the key's own limit, or this replica is going."""
    return refused.outcome in _LIMITED or refused.outcome is Outcome.CLOSING


def error_of(refused: Refused) -> ApiError:
    if refused.outcome is Outcome.CLOSING:
        return draining()
    retry_after_s = None if refused.outcome is Outcome.OVER_TOKEN_LIMIT else refused.retry_after_s
    if refused.outcome in _LIMITED:
        message, code = _LIMITED[refused.outcome], "rate_limit_exceeded"
    else:
        message, code = "The model has no free capacity now; try again shortly.", "overloaded"
    return Overloaded(message, code=code, retry_after_s=retry_after_s, should_retry=refused.should_retry)


def draining() -> ApiError:
    return Unavailable("This replica is shutting down; try again.", retry_after_s=DRAINING_RETRY_S, should_retry=True)
