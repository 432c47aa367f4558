"""What this replica has borrowed of each bucket, and what it last heard of the rest. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.ratelimit.core import MINUTE_MS, UNITS, Charge, slice_of

IDLE_S = 2.0
"""A slice untouched this long goes back: two seconds of one replica's share is nothing, minutes of it would be."""


class Loan(NamedTuple):
    """A charge that needs the bucket itself, and how much may be lent beside it."""

    charge: Charge
    slice: int


class Taken(NamedTuple):
    local: tuple[Charge, ...]
    loans: tuple[Loan, ...]


class View(NamedTuple):
    """A bucket as a client may see it."""

    bucket: str
    limit: int
    remaining: int
    full_in_ms: int


@dataclass(slots=True)
class _Slice:
    limit: int
    held: int = 0
    touched_at: float = 0.0
    level: int | None = None
    heard_at: float = 0.0
    due: int = 0
    """What the bucket does not know yet: used beyond the estimate (positive) or to be given back (negative)."""


@dataclass
class Slices:
    _slices: dict[str, _Slice] = field(default_factory=dict)

    def take(self, charges: Iterable[Charge], now: float) -> Taken:
        """Takes what the slices cover; the rest must be charged at the bucket. Undo with `put_back`."""
        local, loans = [], []
        for charge in charges:
            piece = self._slice(charge)
            piece.touched_at = now
            if piece.held >= charge.amount:
                piece.held -= charge.amount
                local.append(charge)
            else:
                loans.append(Loan(charge, self.lacking(charge)))
        return Taken(tuple(local), tuple(loans))

    def lacking(self, charge: Charge) -> int:
        """Between what is held and a second's budget."""
        return max(0, slice_of(charge.limit) - self._slice(charge).held)

    def put_back(self, charges: Iterable[Charge]) -> None:
        """What a slice may not hold beyond a second's budget is due back to the bucket."""
        for charge in charges:
            piece = self._slice(charge)
            kept = max(0, min(charge.amount, slice_of(charge.limit) - piece.held))
            piece.held += kept
            piece.due -= charge.amount - kept

    def lent(self, loan: Loan, amount: int, level: int, now: float) -> None:
        """The bucket answered: the charge is taken, `amount` more is ours, `level` (units) is left there."""
        piece = self._slice(loan.charge)
        piece.held += amount
        piece.level, piece.heard_at = level, now

    def used(self, charge: Charge, actual: int) -> None:
        """The request used `actual`, not what was charged."""
        if actual < charge.amount:
            self.put_back([charge._replace(amount=charge.amount - actual)])
            return
        piece = self._slice(charge)
        beyond = actual - charge.amount
        covered = min(piece.held, beyond)
        piece.held -= covered
        piece.due += beyond - covered

    def take_due(self, now: float, everything: bool = False) -> list[Charge]:
        """What the buckets must be told: adjustments, and idle slices given back (`everything` at shutdown)."""
        due = []
        for bucket, piece in list(self._slices.items()):
            if piece.held and (everything or now - piece.touched_at >= IDLE_S):
                piece.due -= piece.held
                piece.held = 0
            if piece.due:
                due.append(Charge(bucket, piece.limit, piece.due))
                piece.due = 0
            elif not piece.held and now - max(piece.touched_at, piece.heard_at) > MINUTE_MS / 1000:
                del self._slices[bucket]
        return due

    def not_told(self, charges: Iterable[Charge]) -> None:
        for charge in charges:
            self._slice(charge).due += charge.amount

    def view(self, charge: Charge, now: float) -> View:
        piece = self._slice(charge)
        level = charge.limit * UNITS
        if piece.level is not None:
            told = piece.level + int((now - piece.heard_at) * 1000) * charge.limit
            # What the bucket will be told is as good as done: a client sees what its last request really took.
            level = min(level, told - piece.due * UNITS)
        remaining = max(0, min(charge.limit, level // UNITS + piece.held))
        missing = charge.limit * UNITS - level
        return View(charge.bucket, charge.limit, remaining, -(-missing // charge.limit))

    def _slice(self, charge: Charge) -> _Slice:
        piece = self._slices.get(charge.bucket)
        if piece is None:
            piece = self._slices[charge.bucket] = _Slice(charge.limit)
        piece.limit = charge.limit
        return piece
