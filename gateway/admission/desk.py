"""What stands at one deployment's door in this process: the request's ask, its place in the line, the desk itself."""

import asyncio
from dataclasses import dataclass, field

import msgspec

from gateway.admission.ledger import Grant
from gateway.admission.line import Line, Priority, Waiter
from gateway.admission.outcomes import Refused
from gateway.admission.policy import NOTHING, Capacity, Kind
from gateway.ratelimit.core import Charge
from gateway.ratelimit.slices import Taken
from gateway.site.trip_budget import TripBudget

BATCH_SUFFIX = "/batch"
"""Batch has an account of its own beside its tenant's: it must not use up the tenant's floor."""


class Ask(msgspec.Struct, frozen=True):
    """What a request wants of one deployment. A Struct is made in a tenth of a frozen dataclass's time."""

    deployment: str
    capacity: Capacity
    tenant: str
    tokens: int
    """Estimated uncached tokens."""
    kind: Kind = Kind.INTERACTIVE
    priority: Priority = Priority.INTERACTIVE
    patience_s: float = 0.0
    """How long it may wait for capacity: 0 while another deployment can be tried, then what the deadline leaves."""
    budget: TripBudget | None = None
    """The request's own, so that all its attempts together bear Valkey trouble once; without one, this ask's."""
    charges: tuple[Charge, ...] = ()
    """Rate limits; empty on a second attempt, whose request has been charged."""

    @property
    def account(self) -> str:
        return self.tenant + BATCH_SUFFIX if self.kind is Kind.BATCH else self.tenant


@dataclass(slots=True, eq=False)
class Pending(Waiter):
    budget: TripBudget = field(default_factory=lambda: TripBudget(0.0))
    taken: Taken = field(default_factory=lambda: Taken((), ()))
    answer: "asyncio.Future[Grant | Refused]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def left(self) -> bool:
        """Answered already, or its client is gone."""
        return self.answer.done()


class Desk:
    """One deployment: its line, and what is known of it."""

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.line = Line()
        self.changed = asyncio.Event()
        self.server: asyncio.Task[None] | None = None
        self.in_flight = False
        self.scarce = False
        self.most = NOTHING
        """Headroom one account may hold here."""
        self.untold = False
        """Held less (or truly used more) than the store knows."""
