"""What an admission store does. Every implementation passes tests/contract/test_admission_store.py."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from gateway.admission.policy import Capacity, Kind, Weight
from gateway.ratelimit.core import Charge
from gateway.ratelimit.slices import Loan

Gauges = Mapping[str, Weight]
"""What one replica holds of one deployment, by account (a tenant, or a tenant's batch)."""


@dataclass(frozen=True)
class LeaseSettings:
    heartbeat_ms: int = 1_000
    ttl_ms: int = 4_000
    """Three lost heartbeats and a slow fourth; with the pruning at the next acquire, a killed replica's capacity is
    back within five seconds."""
    gap_ms: int = 2_500
    """No replica at all has been heard of for this long: the sums are stale, the first to come must not trust them."""
    settle_ms: int = 2_000
    """After such a gap, or when the store came up empty, until every replica has written its gauges again: the
    slowest link probe (site/link.py) and a heartbeat."""
    calling_ms: int = 1_000
    """How long a refusal inside a floor keeps others from borrowing: the owner asks again several times meanwhile."""
    push_every_ms: int = 100
    """A saturated deployment refuses thousands of asks a second; the others need to hear of it once."""


class Verdict(StrEnum):
    GRANTED = "granted"
    FULL = "full"
    LIMITED = "limited"


class StoreAsk(NamedTuple):
    account: str
    kind: Kind
    weight: Weight
    """Already clamped (policy.clamped)."""
    headroom: Weight
    """Wanted beside it."""
    loans: tuple[Loan, ...] = ()


class Lent(NamedTuple):
    amount: int
    level: int
    """Units left in the bucket."""


class StoreAnswer(NamedTuple):
    verdict: Verdict
    headroom: Weight = Weight()
    lent: tuple[Lent, ...] = ()
    """One a loan, if granted."""
    short: int = -1
    """LIMITED: the loan whose bucket had too little."""
    wait_ms: int = 0


class Standing(NamedTuple):
    """What every trip tells a replica about the fleet."""

    replicas: int
    lease_lost: bool
    """This epoch had been pruned (or the store lost it): nothing it held without using may be used any more."""
    settling: bool
    scarce: Mapping[str, bool]
    """By deployment: headroom is to be given back, and releases told at once."""


class Replica(NamedTuple):
    """Who writes. `seq` grows with every trip; an older one never overwrites a newer."""

    epoch: str
    seq: int
    known: bool
    """Whether this epoch has been registered before: only then can its lease be lost."""
    replicas: int
    """How many there were when last heard; the share while settling."""


class AdmissionStore(Protocol):
    async def acquire(
        self,
        replica: Replica,
        deployment: str,
        capacity: Capacity,
        held: Gauges,
        asks: Sequence[StoreAsk],
        within_s: float,
    ) -> tuple[Standing, list[StoreAnswer]]:
        """Writes `held` as this replica's gauges, then decides the asks in order, and adds what it grants."""
        ...

    async def beat(self, replica: Replica, held: Mapping[str, tuple[Capacity, Gauges]]) -> Standing:
        """Renews the lease and writes the gauges of all deployments."""
        ...

    async def leave(self, replica: Replica, deployments: Sequence[str]) -> None:
        """Gives the lease and everything it holds back."""
        ...

    async def adjust(self, charges: Sequence[Charge]) -> Sequence[int]:
        """Rate limits: see ratelimit/limits.py."""
        ...

    async def listen(self, on_scarce: Callable[[str], None]) -> None:
        """Runs until cancelled; names deployments at which somebody was just refused."""
        ...
