"""How asking for admission can end. Outcomes are for metrics; `Refused` is what the caller raises to the client.

    Refused   429, with Retry-After and x-should-retry

Each refusing outcome comes as a `Refused`. A client that left while it waited is Outcome.ABANDONED and nothing else:
its cancellation goes on.
"""

import math
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """Closed set, used as a metric label."""

    ADMITTED = "admitted"
    QUEUE_FULL = "queue_full"
    """No capacity, and the line is full of requests that go first."""
    QUEUE_TIMEOUT = "queue_timeout"
    """No capacity came free before the deadline."""
    NO_CAPACITY = "no_capacity"
    """No capacity, and this request does not wait (batch, or no patience given)."""
    DISPLACED = "displaced"
    """Waited, and had to make room in the full line for a request of higher priority."""
    REQUEST_LIMIT = "request_limit"
    TOKEN_LIMIT = "token_limit"
    OVER_TOKEN_LIMIT = "over_token_limit"
    """Larger alone than the key's tokens a minute: no wait helps."""
    CLOSING = "closing"
    """This replica is draining."""
    ABANDONED = "abandoned"
    """The client left while waiting. Never a `Refused`."""


LIMITED = frozenset({Outcome.REQUEST_LIMIT, Outcome.TOKEN_LIMIT, Outcome.OVER_TOKEN_LIMIT})

OVERLOAD_RETRY_S = (1.0, 5.0)
"""Requests last seconds to minutes, so some capacity is free within this; spread, so that retries come back spread."""

BATCH_RETRY_S = (10.0, 20.0)
"""A batch runner loses nothing by waiting, and peaks last longer than one request."""

WORTH_RETRYING_S = 20.0
"""A client's automatic retry should not sit on a connection for longer than this; its own code should decide."""


@dataclass(eq=False)
class Refused(Exception):
    outcome: Outcome
    retry_after_s: float
    should_retry: bool

    status = 429

    def __str__(self) -> str:
        return self.outcome

    def headers(self) -> dict[str, str]:
        values = {"x-should-retry": "true" if self.should_retry else "false"}
        if self.outcome is not Outcome.OVER_TOKEN_LIMIT:
            values["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        return values


def refusal(outcome: Outcome, batch: bool, draw: float) -> Refused:
    """For want of capacity. `draw` is uniform in [0, 1)."""
    low, high = BATCH_RETRY_S if batch else OVERLOAD_RETRY_S
    return Refused(outcome, low + draw * (high - low), should_retry=not batch)


def limit_refusal(outcome: Outcome, wait_ms: int) -> Refused:
    """For want of rate: the wait is known to the millisecond."""
    wait_s = max(0, wait_ms) / 1000
    return Refused(outcome, wait_s, outcome is not Outcome.OVER_TOKEN_LIMIT and wait_s <= WORTH_RETRYING_S)
