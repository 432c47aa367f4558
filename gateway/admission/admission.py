"""Admission at one site, as the request path calls it. The shell: clock, tasks and the store; decisions are elsewhere.

A request either finds headroom and a rate slice in this process (no trip, no wait), or joins the line of its
deployment. One task a deployment serves its line, with one trip in flight at a time: everything that came meanwhile
goes with the next, and no two trips write the gauges of one deployment at once.

Store away: every ask is decided at once on this replica's share, max(1, floor(limit / last known replicas)).
"""

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable

from gateway.admission import policy
from gateway.admission.desk import BATCH_SUFFIX, Ask, Desk, Pending
from gateway.admission.ledger import Grant, Ledger, most_headroom
from gateway.admission.line import Waiter
from gateway.admission.outcomes import Outcome, Refused, limit_refusal, refusal
from gateway.admission.policy import NOTHING, Kind, Weight
from gateway.admission.store import AdmissionStore, LeaseSettings, Replica, Standing, StoreAnswer, StoreAsk, Verdict
from gateway.ratelimit.core import NEVER_MS
from gateway.ratelimit.limits import RateLimits, Short
from gateway.ratelimit.slices import Taken
from gateway.site.errors import SiteUnavailable
from gateway.site.trip_budget import TRIP_BUDGET_S, TripBudget

ASK_AGAIN_S = 0.05
"""How often waiting asks are put again without a sign that capacity came free: a fraction of any patience."""

GATHER_S = 0.01
"""Releases at a scarce deployment are told together: at most a hundred trips a second, whatever the load."""

AWAY_RETRY_S = 0.2
"""How soon a heartbeat that found the site away tries again: replicas must be back within the settling time."""

CERTAIN_MARGIN_MS = 500
"""How much earlier than the store this replica holds its lease for lost: clocks run at slightly different speeds, and
a grant must be well under way before the store could prune it."""

OWN_STALL_S = 0.5
"""A trip that took this long is no word about Valkey, whose answer is given up long before: it was this process."""

LEAST_TRIP_S = 0.01
"""What an ask gets although it waited long for its first trip: that was our own event loop, not Valkey."""


class Admission:
    def __init__(
        self,
        store: AdmissionStore,
        settings: LeaseSettings,
        clock: Callable[[], float] = time.monotonic,
        headroom: bool = True,
    ) -> None:
        """Without headroom every request takes the trip: exact sums at every moment, at the price of the trip."""
        self.limits = RateLimits(store)
        self.outcomes: Counter[Outcome] = Counter()
        self.leases_lost = 0
        self.replicas = 1
        self.alone = False
        """The last trip found the site away."""
        self.settling = True
        """Sums at the site are not trusted yet: this replica gets no more than its share."""
        self._store = store
        self._settings = settings
        self._headroom = headroom
        self._clock = clock
        self._ledger = Ledger()
        self._desks: dict[str, Desk] = {}
        self._epoch = secrets.token_hex(8)
        self._seq = 0
        self._known = False
        self._closing = False
        self._tell = asyncio.Event()

    # ── the request path ──

    async def acquire(self, ask: Ask) -> Grant | Refused:
        """Waits at most `patience_s` for capacity, and at most TRIP_BUDGET_S longer because of Valkey.

        The caller owns the grant and releases it, whatever happens. A `Refused` is for the caller to raise when it has
        no other deployment to try. A cancelled caller owns nothing.
        """
        if self._closing:
            return self._refuse(Outcome.CLOSING, ask)
        now = self._clock()
        desk = self._desk(ask)
        weight = policy.clamped(ask.capacity, ask.account, ask.kind, Weight(1, ask.tokens))
        taken = self.limits.take(ask.charges, now)
        if not taken.loans and not len(desk.line):
            grant = self._ledger.take(ask.deployment, ask.account, weight, now)
            if grant is not None:
                self.outcomes[Outcome.ADMITTED] += 1
                return grant
        return await self._ask_in_line(desk, ask, weight, taken, now)

    def correct(self, grant: Grant, tokens: int) -> None:
        """The true uncached tokens, when the first token tells. Nothing once the grant is released."""
        if grant.released:
            return
        desk = self._desks[grant.deployment]
        counted = policy.clamped(desk.capacity, grant.account, Kind.INTERACTIVE, Weight(1, tokens))
        if self._ledger.correct(grant, counted.tokens):
            desk.untold = True
            self._tell.set()
        self._trim(grant.deployment, desk, grant.account)

    def release(self, grant: Grant, prefill_left_s: float = 0.0) -> None:
        """Exactly once counts; never waits, so it is safe in any `finally`.

        `prefill_left_s` for a client that left during prefill: the prefill's estimated rest.
        """
        if self._ledger.release(grant, self._clock(), prefill_left_s):
            desk = self._desks[grant.deployment]
            self._trim(grant.deployment, desk, grant.account)
            desk.changed.set()

    def in_use(self, deployment: str) -> Weight:
        return policy.total(self._ledger.in_use(deployment).values())

    def waiting(self, deployment: str) -> int:
        desk = self._desks.get(deployment)
        return len(desk.line) if desk else 0

    def is_scarce(self, deployment: str) -> bool:
        """As last heard: nearly all of its capacity is given out."""
        desk = self._desks.get(deployment)
        return desk is not None and desk.scarce

    # ── background and life cycle ──

    async def run(self) -> None:
        """Runs until cancelled: heartbeats, giving back, hearing of scarcity."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._heartbeat())
            tasks.create_task(self._tell_soon())
            tasks.create_task(self._store.listen(self._heard_scarce))

    def stop_admitting(self) -> None:
        """Draining: whoever waits or comes is refused; what runs goes on and is released as ever."""
        self._closing = True
        for desk in self._desks.values():
            while waiters := desk.line.next_asks():
                for waiter in waiters:
                    self._settle_refused(desk, waiter, Outcome.CLOSING)

    async def leave(self) -> None:
        """After the drain, with `run` cancelled: slices and the lease go back. A site that is away finds out by TTL."""
        self.stop_admitting()
        servers = [desk.server for desk in self._desks.values() if desk.server is not None]
        if servers:
            await asyncio.wait(servers)
        await self.limits.flush(self._clock(), everything=True)
        try:
            await self._store.leave(self._me(), list(self._desks))
        except SiteUnavailable:
            self.alone = True

    # ── the line ──

    async def _ask_in_line(self, desk: Desk, ask: Ask, weight: Weight, taken: Taken, now: float) -> Grant | Refused:
        pending = Pending(
            StoreAsk(ask.account, ask.kind, weight, NOTHING, taken.loans),
            ask.priority,
            arrived_at=now,
            deadline=now + ask.patience_s,
            budget=ask.budget or TripBudget(now),
            taken=taken,
        )
        desk.line.join(pending)
        desk.changed.set()
        if desk.server is None:
            desk.server = asyncio.create_task(self._serve(ask.deployment, desk))
            desk.server.add_done_callback(lambda server: _served(desk, server))
        try:
            answer = await pending.answer
        except asyncio.CancelledError:
            self._abandon(desk, pending)
            raise
        self.outcomes[answer.outcome if isinstance(answer, Refused) else Outcome.ADMITTED] += 1
        return answer

    def _abandon(self, desk: Desk, pending: Pending) -> None:
        """The client left. If its answer was on the way already, it is given back here, for nobody else would.

        Left while a trip is under way, it is a waiter whose answer is `left`; _settle gives back what the trip brings.
        """
        self.outcomes[Outcome.ABANDONED] += 1
        desk.line.leave(pending)
        if pending.answer.cancelled():
            self.limits.undo(pending.taken)
        elif isinstance(grant := pending.answer.result(), Grant):
            self.release(grant)
            self.limits.refund(pending.taken)

    async def _serve(self, deployment: str, desk: Desk) -> None:
        while len(desk.line):
            desk.changed.clear()
            again = await self._ask_once(deployment, desk)
            # With the site away nothing in there waits. Who has left says so in his own turn, and must get it: else he stays
            # in the line, and this goes round and round in one turn of the event loop, for ever.
            await asyncio.sleep(0)
            if len(desk.line) and not desk.line.has_new and not again:
                await _set_or_after(desk.changed, ASK_AGAIN_S)
        desk.server = None

    async def _ask_once(self, deployment: str, desk: Desk) -> bool:
        """One trip for all who wait; True if the next should follow at once."""
        waiters = [waiter for waiter in desk.line.next_asks() if isinstance(waiter, Pending)]
        now = self._clock()
        if now >= self._ledger.certain_until:
            self._ledger.void_headroom()
        waiters = self._serve_from_headroom(desk, waiters, deployment, now)
        if not waiters:
            return False
        # Only those asked for the first time are in a hurry; who waits for capacity does so of his own will.
        patience_s = min((each.budget.remaining_s(now) for each in waiters if not each.asked), default=TRIP_BUDGET_S)
        desk.in_flight, desk.untold = True, False
        try:
            standing, answers = await self._store.acquire(
                self._me(),
                deployment,
                desk.capacity,
                self._ledger.gauges(deployment),
                self._with_headroom(deployment, desk, self._with_slices(waiters)),
                max(LEAST_TRIP_S, patience_s),
            )
        except SiteUnavailable:
            desk.untold = True
            if self._clock() - now >= OWN_STALL_S:
                # This process was paused, and what it may still give out is for the others to say.
                return True
            self.alone = True
            self._answer_alone(deployment, desk, waiters)
            return False
        finally:
            desk.in_flight = False
        self._heard(standing, now)
        again = self._answer(deployment, desk, list(zip(waiters, answers, strict=True)))
        if desk.untold and desk.scarce and not again:
            self._tell.set()
        return again

    def _with_slices(self, waiters: list[Pending]) -> list[StoreAsk]:
        """Of all that go together, each bucket's first loan brings the slice."""
        borrowing: set[str] = set()
        return [
            each.ask._replace(loans=self.limits.sized(each.ask.loans, borrowing)) if each.ask.loans else each.ask
            for each in waiters
        ]

    def _with_headroom(self, deployment: str, desk: Desk, asks: list[StoreAsk]) -> list[StoreAsk]:
        """Each account's last ask brings what it wants beside all of them."""
        if desk.most == NOTHING:
            return asks
        together: dict[str, Weight] = {}
        last: dict[str, int] = {}
        for number, ask in enumerate(asks):
            if ask.kind is not Kind.BATCH:
                together[ask.account] = together.get(ask.account, NOTHING).plus(ask.weight)
                last[ask.account] = number
        for account, number in last.items():
            wanted = self._ledger.wanted_headroom(deployment, account, together[account], desk.most)
            asks[number] = asks[number]._replace(headroom=wanted)
        return asks

    def _serve_from_headroom(self, desk: Desk, waiters: list[Pending], deployment: str, now: float) -> list[Pending]:
        """Capacity that was released here serves the next in line without a trip, as far as it is his account's."""
        for number, waiter in enumerate(waiters):
            grant = (
                None if waiter.ask.loans else self._ledger.take(deployment, waiter.ask.account, waiter.ask.weight, now)
            )
            if grant is None:
                return waiters[number:]
            self._settle(desk, waiter, grant)
        return []

    def _answer(self, deployment: str, desk: Desk, answered: list[tuple[Pending, StoreAnswer]]) -> bool:
        now = self._clock()
        full: list[Waiter] = []
        for waiter, answer in answered:
            if answer.verdict is Verdict.GRANTED:
                for loan, lent in zip(waiter.ask.loans, answer.lent, strict=True):
                    self.limits.lent(loan, lent.amount, lent.level, now)
                self._settle(
                    desk,
                    waiter,
                    self._ledger.granted(deployment, waiter.ask.account, waiter.ask.weight, answer.headroom),
                )
            elif waiter.left:
                continue
            elif answer.verdict is Verdict.FULL:
                full.append(waiter)
            else:
                self._settle_limited(desk, waiter, Short(waiter.ask.loans[answer.short].charge, answer.wait_ms))
        if full and desk.untold:
            # Headroom of other accounts, given up just now because capacity is scarce, or something was released
            # meanwhile: that is told with the next trip, which asks for these again.
            return True
        self._wait_on(desk, full, now)
        return False

    def _answer_alone(self, deployment: str, desk: Desk, waiters: Iterable[Pending]) -> None:
        """On this replica's share of the deployment; batch, the first to yield, waits for the site."""
        now = self._clock()
        self._ledger.void_headroom()
        share = desk.capacity.shared_by(self.replicas)
        full: list[Waiter] = []
        for waiter in waiters:
            ask = waiter.ask
            if waiter.left:
                continue
            weight = policy.clamped(share, ask.account, ask.kind, ask.weight)
            used = self._ledger.in_use(deployment)
            if ask.kind is Kind.BATCH or not policy.fits(share, ask.account, ask.kind, weight, used):
                full.append(waiter)
            elif short := self.limits.take_alone(waiter.taken, self.replicas, now):
                self._settle_limited(desk, waiter, short)
            else:
                self._settle(desk, waiter, self._ledger.granted(deployment, ask.account, ask.weight))
        self._wait_on(desk, full, now)

    def _wait_on(self, desk: Desk, full: list[Waiter], now: float) -> None:
        for waiter, outcome in desk.line.refused(full, now):
            self._settle_refused(desk, waiter, outcome)

    def _settle(self, desk: Desk, waiter: Pending, answer: Grant | Refused) -> None:
        """Hands the answer over; if the client left while the trip was under way, what it got goes back."""
        desk.line.leave(waiter)
        if not waiter.left:
            waiter.answer.set_result(answer)
        elif isinstance(answer, Grant):
            self.release(answer)
            self.limits.refund(waiter.taken._replace(local=()))

    def _settle_limited(self, desk: Desk, waiter: Pending, short: Short) -> None:
        self.limits.undo(waiter.taken)
        self._settle(desk, waiter, limit_refusal(_limit_outcome(short), short.wait_ms))

    def _settle_refused(self, desk: Desk, waiter: Waiter, outcome: Outcome) -> None:
        assert isinstance(waiter, Pending)
        if not waiter.left:
            self.limits.undo(waiter.taken)
        self._settle(desk, waiter, refusal(outcome, waiter.ask.kind is Kind.BATCH, random.random()))

    def _refuse(self, outcome: Outcome, ask: Ask) -> Refused:
        self.outcomes[outcome] += 1
        return refusal(outcome, ask.kind is Kind.BATCH, random.random())

    # ── the lease ──

    def _me(self) -> Replica:
        self._seq += 1
        return Replica(self._epoch, self._seq, self._known, self.replicas)

    def _heard(self, standing: Standing, sent_at: float) -> None:
        self.alone, self.settling = False, standing.settling
        self._known = True
        # While the registry settles, those not seen yet are there all the same: their share is not ours to give out.
        self.replicas = max(self.replicas, standing.replicas) if standing.settling else standing.replicas
        if standing.lease_lost:
            self.leases_lost += 1
            self._ledger.void_headroom()
            for desk in self._desks.values():
                desk.untold = True
            self._tell.set()
        certain_s = (self._settings.ttl_ms - CERTAIN_MARGIN_MS) / 1000
        self._ledger.certain_until = max(self._ledger.certain_until, sent_at + certain_s)
        for deployment, scarce in standing.scarce.items():
            desk = self._desks[deployment]
            desk.scarce = scarce
            self._bound(deployment, desk)

    def _heard_scarce(self, deployment: str) -> None:
        desk = self._desks.get(deployment)
        if desk is not None:
            desk.scarce = True
            self._bound(deployment, desk)

    def _trim(self, deployment: str, desk: Desk, account: str | None = None) -> None:
        # Batch keeps nothing it does not use: what it releases is for others to take first.
        keeps_nothing = account is not None and account.endswith(BATCH_SUFFIX)
        if self._ledger.trim(deployment, NOTHING if keeps_nothing else desk.most, account):
            desk.untold = True
            if desk.scarce:
                self._tell.set()

    def _bound(self, deployment: str, desk: Desk) -> None:
        """What the desk's headroom may be, after anything it depends on has changed."""
        free = self._headroom and not desk.scarce
        desk.most = most_headroom(desk.capacity.limit, self.replicas) if free else NOTHING
        self._trim(deployment, desk)

    async def _heartbeat(self) -> None:
        while True:
            started = self._clock()
            self._ledger.expire(started)
            self._ledger.start_beat()
            for deployment, desk in self._desks.items():
                self._trim(deployment, desk)
            told = await self._beat(self._desks)
            await self.limits.flush(self._clock())
            pause_s = self._settings.heartbeat_ms / 1000 if told else AWAY_RETRY_S
            await asyncio.sleep(max(0.0, pause_s - (self._clock() - started)))

    async def _tell_soon(self) -> None:
        while True:
            await self._tell.wait()
            await asyncio.sleep(GATHER_S)
            self._tell.clear()
            await self._beat([deployment for deployment, desk in self._desks.items() if desk.untold])

    async def _beat(self, deployments: Iterable[str]) -> bool:
        """Deployments with a trip in flight are left out: that trip writes them, and two at once could lose a grant."""
        held = {}
        for deployment in deployments:
            desk = self._desks[deployment]
            if not desk.in_flight:
                desk.untold = False
                held[deployment] = (desk.capacity, self._ledger.gauges(deployment))
        sent_at = self._clock()
        try:
            standing = await self._store.beat(self._me(), held)
        except SiteUnavailable:
            self.alone = True
            for deployment in held:
                self._desks[deployment].untold = True
            return False
        self._heard(standing, sent_at)
        return True

    def _desk(self, ask: Ask) -> Desk:
        desk = self._desks.get(ask.deployment)
        if desk is None:
            desk = self._desks[ask.deployment] = Desk(ask.capacity)
            self._bound(ask.deployment, desk)
        elif desk.capacity is not ask.capacity:
            desk.capacity = ask.capacity
            self._bound(ask.deployment, desk)
        return desk


def _served(desk: Desk, server: "asyncio.Task[None]") -> None:
    """A line's task ends with the line empty, or with a bug; then those who wait get the error, not silence."""
    error = None if server.cancelled() else server.exception()
    if error is None:
        return
    desk.server = None
    while waiters := desk.line.next_asks():
        for waiter in waiters:
            assert isinstance(waiter, Pending)
            desk.line.leave(waiter)
            waiter.answer.set_exception(error)


def _limit_outcome(short: Short) -> Outcome:
    if short.wait_ms == NEVER_MS:
        return Outcome.OVER_TOKEN_LIMIT
    return Outcome.TOKEN_LIMIT if short.charge.bucket.endswith(":tokens") else Outcome.REQUEST_LIMIT


async def _set_or_after(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return
