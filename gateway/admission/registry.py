"""The lease registry's law: which replicas live, what each holds, who gets more. admission.lua is the same in Valkey.

Every replica writes absolute gauges under its epoch (random at each start), never increments: a lost write heals with
the next one, and a dead epoch takes all it held with it. A lease lives `ttl_ms` from the replica's last trip.

acquire   renew, drop the dead, write own gauges, then for each ask in order: does it fit what all hold together
          (policy.fits)? Are its buckets full enough? Only then add it to the gauges and charge the buckets: all or
          nothing, so that nothing is ever charged for a request that was refused.
beat      renew, write the gauges of several deployments, tell how scarce each is

Sums are trusted only while every living replica is in them. After a gap (nobody heard of for `gap_ms`, or an empty
store) the registry is `settling`: besides fitting the sum, a replica may not hold more than its equal share.

Times are integer milliseconds of the store's clock, which this code never lets run backwards.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gateway.admission import policy
from gateway.admission.policy import Capacity, Weight
from gateway.admission.store import Gauges, LeaseSettings, Lent, Replica, Standing, StoreAnswer, StoreAsk, Verdict
from gateway.ratelimit import core
from gateway.ratelimit.core import Bucket, Charge
from gateway.ratelimit.slices import Loan


class _Record(NamedTuple):
    seq: int
    gauges: Gauges


class Registry:
    def __init__(self, settings: LeaseSettings) -> None:
        self._settings = settings
        self._leases: dict[str, int] = {}
        self._held: dict[str, dict[str, _Record]] = {}
        self._calling: dict[str, dict[str, int]] = {}
        self._pushed_at: dict[str, int] = {}
        self._buckets: dict[str, Bucket] = {}
        self._born = 0
        self._heard_at: int | None = None

    def acquire(
        self,
        now: int,
        replica: Replica,
        deployment: str,
        capacity: Capacity,
        held: Gauges,
        asks: Sequence[StoreAsk],
    ) -> tuple[Standing, list[StoreAnswer], bool]:
        """The last value says whether the other replicas should be told that capacity is scarce."""
        now, lost = self._renewed(now, replica)
        settling = self._is_settling(now)
        fresh = self._write(replica, deployment, held)
        calling = {name: until for name, until in self._calling.get(deployment, {}).items() if until > now}
        own = dict(held)
        used = self._used(deployment)
        answers = []
        refused = False
        for ask in asks:
            answer = StoreAnswer(Verdict.FULL)
            if fresh:
                share = capacity.shared_by(max(replica.replicas, len(self._leases))).limit if settling else None
                answer = self._decide(now, capacity, ask, used, own, frozenset(calling), share)
            answers.append(answer)
            if answer.verdict is Verdict.GRANTED:
                granted = ask.weight.plus(answer.headroom)
                used[ask.account] = used.get(ask.account, policy.NOTHING).plus(granted)
                own[ask.account] = own.get(ask.account, policy.NOTHING).plus(granted)
                calling.pop(ask.account, None)
            elif answer.verdict is Verdict.FULL:
                refused = True
                if policy.inside_floor(capacity, ask.account, ask.weight, used):
                    calling[ask.account] = now + self._settings.calling_ms
        if fresh:
            self._held[deployment][replica.epoch] = _Record(replica.seq, own)
        self._calling[deployment] = calling
        scarce = refused or bool(calling) or policy.is_scarce(capacity, used)
        push = refused and now - self._pushed_at.get(deployment, 0) >= self._settings.push_every_ms
        if push:
            self._pushed_at[deployment] = now
        return Standing(len(self._leases), lost, settling, {deployment: scarce}), answers, push

    def beat(self, now: int, replica: Replica, held: Mapping[str, tuple[Capacity, Gauges]]) -> Standing:
        now, lost = self._renewed(now, replica)
        scarce = {}
        for deployment, (capacity, gauges) in held.items():
            self._write(replica, deployment, gauges)
            calling = any(until > now for until in self._calling.get(deployment, {}).values())
            scarce[deployment] = calling or policy.is_scarce(capacity, self._used(deployment))
        return Standing(len(self._leases), lost, self._is_settling(now), scarce)

    def leave(self, replica: Replica, deployments: Iterable[str]) -> None:
        self._leases.pop(replica.epoch, None)
        for deployment in deployments:
            self._held.get(deployment, {}).pop(replica.epoch, None)

    def adjust(self, now: int, charges: Iterable[Charge]) -> list[int]:
        levels = []
        for charge in charges:
            bucket = core.adjusted(self._bucket(charge, now), charge.limit, charge.amount)
            self._buckets[charge.bucket] = bucket
            levels.append(bucket.level)
        return levels

    def used(self, deployment: str) -> dict[str, Weight]:
        """By account, of all living replicas; for tests that judge the sums."""
        return self._used(deployment)

    # ── internals ──

    def _renewed(self, now: int, replica: Replica) -> tuple[int, bool]:
        if self._heard_at is None or now - self._heard_at > self._settings.gap_ms:
            self._born = now
        now = self._heard_at = now if self._heard_at is None else max(now, self._heard_at)
        self._leases = {epoch: until for epoch, until in self._leases.items() if until > now}
        lost = replica.known and replica.epoch not in self._leases
        self._leases[replica.epoch] = now + self._settings.ttl_ms
        return now, lost

    def _is_settling(self, now: int) -> bool:
        return now - self._born < self._settings.settle_ms

    def _write(self, replica: Replica, deployment: str, gauges: Gauges) -> bool:
        records = self._held.setdefault(deployment, {})
        for epoch in [epoch for epoch in records if epoch not in self._leases]:
            del records[epoch]
        record = records.get(replica.epoch)
        if record is not None and record.seq >= replica.seq:
            return False
        records[replica.epoch] = _Record(replica.seq, dict(gauges))
        return True

    def _used(self, deployment: str) -> dict[str, Weight]:
        used: dict[str, Weight] = {}
        for epoch, record in self._held.get(deployment, {}).items():
            if epoch in self._leases:
                for account, weight in record.gauges.items():
                    used[account] = used.get(account, policy.NOTHING).plus(weight)
        return used

    def _decide(
        self,
        now: int,
        capacity: Capacity,
        ask: StoreAsk,
        used: Mapping[str, Weight],
        own: Gauges,
        calling: frozenset[str],
        share: Weight | None,
    ) -> StoreAnswer:
        if not policy.fits(capacity, ask.account, ask.kind, ask.weight, used, calling):
            return StoreAnswer(Verdict.FULL)
        if share is not None and not policy.total(own.values()).plus(ask.weight.not_above(share)).within(share):
            return StoreAnswer(Verdict.FULL)
        buckets = [self._bucket(loan.charge, now) for loan in ask.loans]
        for index, (loan, bucket) in enumerate(zip(ask.loans, buckets, strict=True)):
            wait_ms = core.wait_ms(bucket, loan.charge.limit, loan.charge.amount)
            if wait_ms:
                return StoreAnswer(Verdict.LIMITED, short=index, wait_ms=wait_ms)
        after = {**used, ask.account: used.get(ask.account, policy.NOTHING).plus(ask.weight)}
        room = policy.NOTHING if share is not None else policy.headroom(capacity, ask.account, ask.headroom, after)
        return StoreAnswer(Verdict.GRANTED, room, tuple(self._lend(ask.loans, buckets)))

    def _lend(self, loans: Sequence[Loan], buckets: Sequence[Bucket]) -> Iterable[Lent]:
        for loan, bucket in zip(loans, buckets, strict=True):
            left, lent = core.taken(bucket, loan.charge.limit, loan.charge.amount, loan.slice)
            self._buckets[loan.charge.bucket] = left
            yield Lent(lent, left.level)

    def _bucket(self, charge: Charge, now: int) -> Bucket:
        bucket = self._buckets.get(charge.bucket)
        return core.full(charge.limit, now) if bucket is None else core.refilled(bucket, charge.limit, now)
