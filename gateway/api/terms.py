"""How long a request may take and how it waits in line: from its headers and its key. Pure but for `now`."""

import time
from collections.abc import Mapping

import msgspec

from gateway.accounts.keys import KeyPriority
from gateway.admission import Kind, Priority
from gateway.settings import GatewaySettings

READ_TIMEOUT_HEADER = "x-stainless-read-timeout"
"""The OpenAI SDK says on each call how many seconds it waits for the next byte."""

RETRY_HEADER = "x-stainless-retry-count"

ROUTED_PART = 10
"""An aggregator's request waits a tenth of what a person's does: it has elsewhere to go."""

KEEPALIVE_PARTS = 2
"""A client that waits 4 s for a byte gets one after 2."""

SHORTEST_KEEPALIVE_S = 0.1
"""Whatever a client says of its patience, comments cost it and us something."""


class Terms(msgspec.Struct, frozen=True):
    kind: Kind
    priority: Priority
    patience_s: float
    """For capacity, once no deployment has any."""
    deadline: float
    """Monotonic: the end of the request. For an answer without a stream, the client's own read timeout counts too;
    a stream keeps the client by keep-alive comments."""
    deadline_is_ours: bool
    """False when it is the client's read timeout."""
    keepalive_s: float


def terms_of(
    headers: Mapping[str, str],
    key_priority: KeyPriority,
    stream: bool,
    settings: GatewaySettings,
    now: float | None = None,
) -> Terms:
    now = time.monotonic() if now is None else now
    batch = key_priority is KeyPriority.BATCH
    total_s = settings.total_timeout_seconds
    keepalive_s = settings.keepalive_seconds
    ours = True
    read_s = _seconds(headers.get(READ_TIMEOUT_HEADER))
    if read_s is not None:
        if stream:
            keepalive_s = min(keepalive_s, max(SHORTEST_KEEPALIVE_S, read_s / KEEPALIVE_PARTS))
        elif read_s < total_s:
            total_s, ours = read_s, False
    if batch:
        priority, patience_s = Priority.BATCH, 0.0
    elif key_priority is KeyPriority.ROUTED:
        priority, patience_s = Priority.ROUTED, settings.queue_seconds / ROUTED_PART
    else:
        priority, patience_s = Priority.INTERACTIVE, settings.queue_seconds
    if not batch and _retries(headers.get(RETRY_HEADER)) > 0:
        priority = Priority.RETRY
    return Terms(
        kind=Kind.BATCH if batch else Kind.INTERACTIVE,
        priority=priority,
        patience_s=min(patience_s, total_s),
        deadline=now + total_s,
        deadline_is_ours=ours,
        keepalive_s=keepalive_s,
    )


def _seconds(text: str | None) -> float | None:
    """A positive number, or nothing: what a client sends must not stop its request."""
    try:
        seconds = float(text) if text is not None else 0.0
    except ValueError:
        return None
    return seconds if 0.0 < seconds < float("inf") else None


def _retries(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else 0
