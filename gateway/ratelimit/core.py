"""The bucket: a minute's budget that refills evenly. bucket.lua is the same inside Valkey.

Levels are kept in units of 1/60,000 of what is limited: then a millisecond refills exactly `limit` of them, and Lua and
Python compute the same integers. A level may be negative (usage was higher than estimated): debt, paid by the refill,
and never more than a minute's.
"""

from typing import NamedTuple

MINUTE_MS = 60_000
UNITS = MINUTE_MS

SMALL_LIMIT = 600
"""Below ten a second a slice is too coarse to lend: such limits are charged in Valkey, one by one, and exact."""

NEVER_MS = -1
"""The wait of a charge larger than the whole minute's budget."""


class Charge(NamedTuple):
    bucket: str
    """Names the bucket: key id and what is limited."""
    limit: int
    """Per minute."""
    amount: int


class Bucket(NamedTuple):
    level: int
    at: int


def charges_for(
    key_id: str, requests_a_minute: int | None, tokens_a_minute: int | None, tokens: int
) -> tuple[Charge, ...]:
    """None is no limit. `tokens` is what the request is estimated to use, prompt and answer."""
    charges = []
    if requests_a_minute is not None:
        charges.append(Charge(f"{key_id}:requests", requests_a_minute, 1))
    if tokens_a_minute is not None:
        charges.append(Charge(f"{key_id}:tokens", tokens_a_minute, tokens))
    return tuple(charges)


def full(limit: int, now: int) -> Bucket:
    return Bucket(limit * UNITS, now)


def refilled(bucket: Bucket, limit: int, now: int) -> Bucket:
    now = max(now, bucket.at)
    return Bucket(min(limit * UNITS, bucket.level + (now - bucket.at) * limit), now)


def wait_ms(bucket: Bucket, limit: int, amount: int) -> int:
    """0 if the amount is there; NEVER_MS if it cannot ever be."""
    if amount > limit:
        return NEVER_MS
    missing = amount * UNITS - bucket.level
    return 0 if missing <= 0 else -(-missing // limit)


def taken(bucket: Bucket, limit: int, amount: int, slice_: int) -> tuple[Bucket, int]:
    """Takes the amount, and as much of the slice as is there. Only after `wait_ms` said 0."""
    left = bucket.level - amount * UNITS
    lent = max(0, min(slice_, left // UNITS))
    return bucket._replace(level=left - lent * UNITS), lent


def adjusted(bucket: Bucket, limit: int, amount: int) -> Bucket:
    """Unconditional: gives back (negative amount) or takes what was used beyond the estimate, into debt if need be."""
    level = bucket.level - amount * UNITS
    return bucket._replace(level=max(-limit * UNITS, min(limit * UNITS, level)))


def slice_of(limit: int) -> int:
    """What one replica may hold at a time: a second's budget."""
    return limit // 60 if limit >= SMALL_LIMIT else 0
