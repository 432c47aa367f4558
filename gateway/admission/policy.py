"""Who may take how much of a deployment's capacity. Pure; admission.lua holds the same rules, tests compare them.

Capacity has two dimensions, requests and uncached tokens; every rule holds in both.

    floor          what a reserved tenant is promised. Capacity outside all floors is the common share.
    idle           the part of its floor that a tenant does not use now
    last share     the first quarter of a floor that its owner uses, rounded up: never lent, so that it gets in at once
    calling        a tenant that was refused inside its floor a moment ago: nothing of its idle floor is lent meanwhile

    any tenant     total + ask + what others keep <= limit, where each other tenant keeps what it does not use of its
                   last share, or of its floor while calling (unless the asker itself is inside its own floor)
    batch          total + ask + every idle floor <= four fifths of the limit: the first to stop
    headroom       what a replica may hold without using it: only while a fifth of the limit and all idle floors stay
                   free, so that it is gone when capacity is scarce
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple


class Weight(NamedTuple):
    requests: int = 0
    tokens: int = 0

    def plus(self, other: "Weight") -> "Weight":
        return Weight(self.requests + other.requests, self.tokens + other.tokens)

    def minus(self, other: "Weight") -> "Weight":
        return Weight(self.requests - other.requests, self.tokens - other.tokens)

    def within(self, other: "Weight") -> bool:
        return self.requests <= other.requests and self.tokens <= other.tokens

    def not_below(self, other: "Weight") -> "Weight":
        return Weight(max(self.requests, other.requests), max(self.tokens, other.tokens))

    def not_above(self, other: "Weight") -> "Weight":
        return Weight(min(self.requests, other.requests), min(self.tokens, other.tokens))


NOTHING = Weight()

LAST_SHARE_PARTS = 4
"""A quarter of a floor is never lent: enough for its owner's first turns while borrowers finish."""

SCARCE_PARTS = 5
"""The last fifth of a deployment is handed out one by one, never held in reserve by a replica, never given to batch."""


class Kind(StrEnum):
    """How an ask is treated. A tenant with a floor asks as INTERACTIVE and has its floor by its name."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


@dataclass(frozen=True)
class Capacity:
    """Of one deployment."""

    limit: Weight
    floors: Mapping[str, Weight] = field(default_factory=dict)

    def __post_init__(self) -> None:
        promised = total(self.floors.values())
        if not promised.within(self.limit):
            raise ValueError(f"floors promise {promised}, more than the limit {self.limit}")
        if self.limit.requests < 1 or self.limit.tokens < 1:
            raise ValueError(f"a deployment's limit must be at least one request and one token, not {self.limit}")

    @cached_property
    def tokens_never_clamped(self) -> int:
        """Up to this many an interactive ask fits an empty deployment, whoever asks: nearly every ask, every time."""
        return self.limit.tokens - total(last_share(floor) for floor in self.floors.values()).tokens

    def shared_by(self, replicas: int) -> "Capacity":
        """What one replica may hand out when it cannot ask the others."""
        share = Weight(self.limit.requests // replicas, self.limit.tokens // replicas).not_below(Weight(1, 1))
        floors = {
            name: Weight(floor.requests // replicas, floor.tokens // replicas) for name, floor in self.floors.items()
        }
        return Capacity(share, floors)


def total(weights: Iterable[Weight]) -> Weight:
    requests = tokens = 0
    for weight in weights:
        requests += weight.requests
        tokens += weight.tokens
    return Weight(requests, tokens)


def last_share(floor: Weight) -> Weight:
    return Weight(-(-floor.requests // LAST_SHARE_PARTS), -(-floor.tokens // LAST_SHARE_PARTS))


def scarce_part(limit: Weight) -> Weight:
    return Weight(-(-limit.requests // SCARCE_PARTS), -(-limit.tokens // SCARCE_PARTS))


def clamped(capacity: Capacity, tenant: str, kind: Kind, weight: Weight) -> Weight:
    """A request larger than an empty deployment would take counts as exactly that much: it gets in alone, not never."""
    if kind is not Kind.BATCH and weight.tokens <= capacity.tokens_never_clamped:
        return weight
    others = (floor for name, floor in capacity.floors.items() if name != tenant)
    if kind is Kind.BATCH:
        most = capacity.limit.minus(scarce_part(capacity.limit)).minus(total(capacity.floors.values()))
    else:
        most = capacity.limit.minus(total(last_share(floor) for floor in others))
    return Weight(weight.requests, max(0, min(weight.tokens, most.tokens)))


def inside_floor(capacity: Capacity, tenant: str, weight: Weight, used: Mapping[str, Weight]) -> bool:
    floor = capacity.floors.get(tenant)
    return floor is not None and used.get(tenant, NOTHING).plus(weight).within(floor)


def fits(
    capacity: Capacity,
    tenant: str,
    kind: Kind,
    weight: Weight,
    used: Mapping[str, Weight],
    calling: frozenset[str] = frozenset(),
) -> bool:
    after = total(used.values()).plus(weight)
    if kind is Kind.BATCH:
        ceiling = capacity.limit.minus(scarce_part(capacity.limit))
        return after.plus(_idle(capacity, used, but=None)).within(ceiling)
    inside = inside_floor(capacity, tenant, weight, used)
    kept = NOTHING
    for name, floor in capacity.floors.items():
        if name == tenant:
            continue
        # The first of its requests use its last share up: kept anew for each, it would shut out the other owners.
        promised = floor if name in calling and not inside else last_share(floor)
        kept = kept.plus(promised.minus(used.get(name, NOTHING)).not_below(NOTHING))
    return after.plus(kept).within(capacity.limit)


def headroom(capacity: Capacity, tenant: str, wanted: Weight, used: Mapping[str, Weight]) -> Weight:
    """How much of `wanted` a replica may hold for the tenant beyond what is `used`. All or nothing a dimension."""
    free = (
        capacity.limit.minus(scarce_part(capacity.limit))
        .minus(total(used.values()))
        .minus(_idle(capacity, used, but=tenant))
    )
    room = wanted.not_above(free).not_below(NOTHING)
    return room if room.requests and room.tokens else NOTHING


def is_scarce(capacity: Capacity, used: Mapping[str, Weight]) -> bool:
    return not total(used.values()).plus(scarce_part(capacity.limit)).within(capacity.limit)


def _idle(capacity: Capacity, used: Mapping[str, Weight], but: str | None) -> Weight:
    return total(
        floor.minus(used.get(name, NOTHING)).not_below(NOTHING)
        for name, floor in capacity.floors.items()
        if name != but
    )
