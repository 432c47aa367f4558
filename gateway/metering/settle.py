"""One settle record a request: who used what. Closed exactly once, by whoever owns the request at its end."""

import logging
import secrets
import time
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

import msgspec

from gateway.metering.usage import Usage
from gateway.telemetry.metrics import UNKNOWN_MODEL, Metrics

logger = logging.getLogger("gateway.requests")


class Outcome(StrEnum):
    """How a request ended. Closed: used as a metric label."""

    OK = "ok"
    CLIENT_ERROR = "client_error"
    OVERLOADED = "overloaded"
    UPSTREAM_ERROR = "upstream_error"
    STREAM_ERROR = "stream_error"
    CLIENT_GONE = "client_gone"
    INTERNAL_ERROR = "internal_error"


def outcome_of_status(status: int) -> Outcome:
    if status < 400:
        return Outcome.OK
    if status == 429:
        return Outcome.OVERLOADED
    if status < 500:
        return Outcome.CLIENT_ERROR
    return Outcome.INTERNAL_ERROR if status == 500 else Outcome.UPSTREAM_ERROR


class SettleRecord(msgspec.Struct, frozen=True):
    """What is kept of a request. No prompt, no answer, no key."""

    settle_id: str
    """Ours and unique: a record may be written twice when Valkey's answer is lost, and readers tell by this."""
    request_id: str
    tenant: str
    key_name: str
    endpoint: str
    model: str
    deployment: str
    session: str
    outcome: Outcome
    attempts: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    usage_known: bool
    """False when the stream ended before the engine's own count: the tokens above are then zero, not measured."""
    first_event_seconds: float | None
    duration_seconds: float


class RequestSpan(Protocol):
    """A trace's view of the request (telemetry/spans.py), ended with its record."""

    @property
    def headers(self) -> dict[str, str]: ...

    def asked(self, stream: bool, most_tokens: int | None) -> None: ...

    def end(self, record: "SettleRecord") -> None: ...


class Settlement:
    """A request's account while it runs. Fields fill up on the way; `close` writes the record once."""

    def __init__(self, endpoint: str, request_id: str, metrics: Metrics, keep: Callable[[SettleRecord], None]) -> None:
        self._metrics = metrics
        self._keep = keep
        self._started = time.monotonic()
        self._closed = False
        self.endpoint = endpoint
        self.request_id = request_id
        self.tenant = ""
        self.key_name = ""
        self.model = UNKNOWN_MODEL
        self.deployment = ""
        self.session = ""
        self.attempts = 0
        self.usage: Usage | None = None
        self.timing: dict[str, object] | None = None
        self._first_event_s: float | None = None
        self.span: RequestSpan | None = None
        metrics.in_flight.labels(endpoint).inc()

    def first_event(self) -> None:
        self._first_event_s = time.monotonic() - self._started
        self._metrics.first_event.labels(self.endpoint, self.model).observe(self._first_event_s)

    def whole_answer(self) -> None:
        """An answer that comes whole has no first event: it would make a long answer look like a late one."""
        self._first_event_s = time.monotonic() - self._started

    def close(self, outcome: Outcome) -> None:
        """Idempotent: the first call decides."""
        if self._closed:
            return
        self._closed = True
        duration = time.monotonic() - self._started
        metrics = self._metrics
        metrics.in_flight.labels(self.endpoint).dec()
        metrics.requests.labels(self.endpoint, self.model, outcome.value).inc()
        metrics.duration.labels(self.endpoint, self.model).observe(duration)
        usage = self.usage or Usage(0, 0, 0, 0)
        if self.usage is not None:
            metrics.tokens.labels(self.model, "prompt").inc(usage.prompt_tokens)
            metrics.tokens.labels(self.model, "cached").inc(usage.cached_tokens)
            metrics.tokens.labels(self.model, "completion").inc(usage.completion_tokens)
        record = SettleRecord(
            settle_id=secrets.token_hex(16),
            request_id=self.request_id,
            tenant=self.tenant,
            key_name=self.key_name,
            endpoint=self.endpoint,
            model=self.model,
            deployment=self.deployment,
            session=self.session,
            outcome=outcome,
            attempts=self.attempts,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            completion_tokens=usage.completion_tokens,
            usage_known=self.usage is not None,
            first_event_seconds=self._first_event_s,
            duration_seconds=duration,
        )
        logger.info("request", extra={**msgspec.structs.asdict(record), "timing": self.timing})
        if self.span is not None:
            self.span.end(record)
        self._keep(record)
