"""The replica's side of the rate limits: slices, what the buckets are due, and going on alone.

Admission calls `take`, `lent` and `undo` around its own trip; nobody else moves slices. `flush` tells the buckets what
they are due, in the background and at shutdown.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from gateway.ratelimit import core
from gateway.ratelimit.core import UNITS, Bucket, Charge
from gateway.ratelimit.slices import Loan, Slices, Taken, View
from gateway.site.errors import SiteUnavailable


class BucketStore(Protocol):
    async def adjust(self, charges: Sequence[Charge]) -> Sequence[int]:
        """Unconditional; answers each bucket's level in units."""
        ...


class Short(NamedTuple):
    """The bucket that had too little, and for how long (NEVER_MS: for ever)."""

    charge: Charge
    wait_ms: int


class RateLimits:
    def __init__(self, store: BucketStore) -> None:
        self._store = store
        self._slices = Slices()
        self._alone: dict[str, Bucket] = {}

    def take(self, charges: Iterable[Charge], now: float) -> Taken:
        return self._slices.take(charges, now)

    def sized(self, loans: Iterable[Loan], borrowing: set[str]) -> tuple[Loan, ...]:
        """The loans as one trip puts them: what a slice lacks now, and once a bucket. `borrowing` holds the buckets whose
        loan is in the trip already."""
        sized = []
        for loan in loans:
            bucket = loan.charge.bucket
            sized.append(Loan(loan.charge, 0 if bucket in borrowing else self._slices.lacking(loan.charge)))
            borrowing.add(bucket)
        return tuple(sized)

    def lent(self, loan: Loan, amount: int, level: int, now: float) -> None:
        self._alone.pop(loan.charge.bucket, None)
        self._slices.lent(loan, amount, level, now)

    def undo(self, taken: Taken) -> None:
        """Admission refused: what came from slices goes back (loans were never charged)."""
        self._slices.put_back(taken.local)

    def refund(self, taken: Taken) -> None:
        """Admitted, but its client had left: everything charged goes back."""
        self._slices.put_back([*taken.local, *(loan.charge for loan in taken.loans)])

    def settle(self, charges: Iterable[Charge], actual_tokens: int) -> None:
        """Once a request, when its usage is known. A request that failed has used 0 tokens, but was a request."""
        for charge in charges:
            if charge.bucket.endswith(":tokens"):
                self._slices.used(charge, actual_tokens)

    def views(self, charges: Iterable[Charge], now: float) -> list[View]:
        return [self._slices.view(charge, now) for charge in charges]

    def take_alone(self, taken: Taken, replicas: int, now: float) -> Short | None:
        """The site's Valkey is away: loans are charged to this replica's share of each limit instead."""
        now_ms = int(now * 1000)
        buckets: list[tuple[Charge, Bucket]] = []
        for loan in taken.loans:
            share = loan.charge._replace(limit=max(1, loan.charge.limit // replicas))
            bucket = self._alone.get(share.bucket)
            if bucket is None:
                known = self._slices.view(loan.charge, now).remaining // replicas
                bucket = Bucket(min(share.limit, max(1, known)) * UNITS, now_ms)
            bucket = core.refilled(bucket, share.limit, now_ms)
            # One request larger than the share (tokens) waits for a full share and then leaves it in debt.
            wait = core.wait_ms(bucket, share.limit, min(share.amount, share.limit))
            if wait:
                return Short(loan.charge, wait)
            buckets.append((share, bucket))
        for share, bucket in buckets:
            self._alone[share.bucket] = core.adjusted(bucket, share.limit, share.amount)
        return None

    async def flush(self, now: float, everything: bool = False) -> None:
        now_ms = int(now * 1000)
        self._alone = {name: each for name, each in self._alone.items() if now_ms - each.at < core.MINUTE_MS}
        due = self._slices.take_due(now, everything)
        if not due:
            return
        try:
            await self._store.adjust(due)
        except SiteUnavailable as error:
            # If it may have arrived, giving back a second time would lend what nobody has: only debts are told again.
            self._slices.not_told(due if error.link_is_down else [charge for charge in due if charge.amount > 0])
