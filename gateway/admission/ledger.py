"""What this process's lease holds: requests in use, prefills left behind, and headroom. Pure.

    held = in use + lingering + headroom

is what the process writes as its gauges. Only the store makes `held` grow (Ledger.granted), but for one exception:
usage that turns out higher than estimated is real, and is written although nobody granted it.

A grant is one request's part of the lease. Whoever closes the request releases it; only the first release counts.
A released grant becomes headroom, so that the next request needs no trip, as far as the recent peak justifies it; what
is beyond that is given back with the next write.

Headroom counts only while the lease is certain (`certain_until`, which ends before the store would prune it): a process
that was paused finds it void and must ask.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.admission.policy import NOTHING, Weight

SPARE_PARTS = 4
"""A replica keeps a quarter more than its recent peak: in steady traffic nearly no request then needs a trip."""

FLEET_SPARE_PARTS = 4
"""All replicas' headroom together is at most a quarter of a deployment."""


@dataclass(slots=True, eq=False)
class Grant:
    """Belongs to one request on one deployment; settled by the first `release`."""

    deployment: str
    account: str
    weight: Weight
    released: bool = False


@dataclass(slots=True)
class _Account:
    in_use: Weight = NOTHING
    lingering: int = 0
    headroom: Weight = NOTHING
    peak: Weight = NOTHING
    peak_before: Weight = NOTHING

    def held(self) -> Weight:
        return Weight(
            self.in_use.requests + self.headroom.requests,
            self.in_use.tokens + self.headroom.tokens + self.lingering,
        )

    def recent_peak(self) -> Weight:
        return self.peak.not_below(self.peak_before)


@dataclass(slots=True)
class _Lingering:
    ends_at: float
    account: _Account
    tokens: int


@dataclass
class Ledger:
    certain_until: float = -math.inf
    _accounts: dict[str, dict[str, _Account]] = field(default_factory=dict)
    _lingering: list[_Lingering] = field(default_factory=list)

    def take(self, deployment: str, account: str, weight: Weight, now: float) -> Grant | None:
        """Out of headroom, without a trip; None if that is not possible."""
        entry = self._accounts.get(deployment, {}).get(account)
        if entry is None or now >= self.certain_until:
            return None
        requests, tokens = entry.headroom
        if weight.requests > requests or weight.tokens > tokens:
            return None
        entry.headroom = Weight(requests - weight.requests, tokens - weight.tokens)
        return self._used(entry, deployment, account, weight)

    def granted(self, deployment: str, account: str, weight: Weight, headroom: Weight = NOTHING) -> Grant:
        """The store granted it (or, with the site away, this replica's share had room for it)."""
        entry = self._entry(deployment, account)
        entry.headroom = entry.headroom.plus(headroom)
        return self._used(entry, deployment, account, weight)

    def correct(self, grant: Grant, tokens: int) -> bool:
        """The true uncached tokens, known at the first token. True if this uses more than is held so far."""
        if grant.released or tokens == grant.weight.tokens:
            return False
        entry = self._entry(grant.deployment, grant.account)
        more = tokens - grant.weight.tokens
        grant.weight = grant.weight._replace(tokens=tokens)
        entry.in_use = entry.in_use.plus(Weight(0, more))
        # Less than estimated: the rest is headroom. More: out of headroom while there is some, then beyond the grant.
        left = entry.headroom.tokens - more
        entry.headroom = entry.headroom._replace(tokens=max(0, left))
        entry.peak = entry.peak.not_below(entry.in_use)
        return left < 0

    def release(self, grant: Grant, now: float, prefill_left_s: float = 0.0) -> bool:
        """True the first time. With `prefill_left_s` the tokens stay: a remote prefill is not cancelled by a client
        that leaves, and keeps its workers busy for that long."""
        if grant.released:
            return False
        grant.released = True
        entry = self._entry(grant.deployment, grant.account)
        entry.in_use = Weight(entry.in_use[0] - grant.weight[0], entry.in_use[1] - grant.weight[1])
        if prefill_left_s > 0:
            entry.lingering += grant.weight.tokens
            self._lingering.append(_Lingering(now + prefill_left_s, entry, grant.weight.tokens))
            entry.headroom = entry.headroom.plus(Weight(grant.weight.requests, 0))
        else:
            entry.headroom = entry.headroom.plus(grant.weight)
        return True

    def expire(self, now: float) -> None:
        ended = [each for each in self._lingering if each.ends_at <= now]
        if ended:
            self._lingering = [each for each in self._lingering if each.ends_at > now]
            for each in ended:
                each.account.lingering -= each.tokens

    def trim(self, deployment: str, most: Weight, account: str | None = None) -> bool:
        """Headroom down to what the recent peak justifies, and to `most`; True if that leaves something to tell."""
        accounts = self._accounts.get(deployment, {})
        trimmed = False
        for entry in accounts.values() if account is None else (accounts[account],):
            requests, tokens = entry.headroom
            justified = _justified(entry, entry.in_use)
            left_requests = min(requests, justified[0], most[0])
            left_tokens = min(tokens, justified[1], most[1])
            if left_requests != requests or left_tokens != tokens:
                trimmed = True
                entry.headroom = Weight(left_requests, left_tokens)
        return trimmed

    def void_headroom(self) -> None:
        """The lease was lost: only what is truly used is still ours to write."""
        for accounts in self._accounts.values():
            for entry in accounts.values():
                entry.headroom = NOTHING

    def wanted_headroom(self, deployment: str, account: str, weight: Weight, most: Weight) -> Weight:
        """What to ask for beside `weight`."""
        entry = self._accounts.get(deployment, {}).get(account) or _Account()
        after = entry.in_use.plus(weight)
        return Weight(*_justified(entry, after)).not_above(most).minus(entry.headroom).not_below(NOTHING)

    def start_beat(self) -> None:
        """A heartbeat's peaks become the ones before; accounts that hold nothing and lately held nothing go."""
        for accounts in self._accounts.values():
            for name, entry in list(accounts.items()):
                entry.peak_before, entry.peak = entry.peak, entry.in_use
                if entry.held() == NOTHING and entry.peak_before == NOTHING:
                    del accounts[name]

    def gauges(self, deployment: str) -> dict[str, Weight]:
        return {
            name: entry.held() for name, entry in self._accounts.get(deployment, {}).items() if entry.held() != NOTHING
        }

    def in_use(self, deployment: str) -> dict[str, Weight]:
        """Without headroom: what goes on whatever the store says."""
        return {
            name: entry.in_use.plus(Weight(0, entry.lingering))
            for name, entry in self._accounts.get(deployment, {}).items()
        }

    def deployments(self) -> Iterable[str]:
        return self._accounts.keys()

    def _used(self, entry: _Account, deployment: str, account: str, weight: Weight) -> Grant:
        requests, tokens = entry.in_use[0] + weight[0], entry.in_use[1] + weight[1]
        entry.in_use = Weight(requests, tokens)
        if requests > entry.peak[0] or tokens > entry.peak[1]:
            entry.peak = entry.peak.not_below(entry.in_use)
        return Grant(deployment, account, weight)

    def _entry(self, deployment: str, account: str) -> _Account:
        accounts = self._accounts.setdefault(deployment, {})
        entry = accounts.get(account)
        if entry is None:
            entry = accounts[account] = _Account()
        return entry


def _justified(entry: _Account, in_use: Weight) -> tuple[int, int]:
    """Headroom beside `in_use` that the recent peak speaks for. Plain numbers: it runs at every release."""
    requests = max(entry.peak[0], entry.peak_before[0], in_use[0])
    if not requests:
        return (0, 0)
    tokens = max(entry.peak[1], entry.peak_before[1], in_use[1])
    return (
        max(0, requests + max(1, requests // SPARE_PARTS) - in_use[0]),
        max(0, tokens + max(1, tokens // SPARE_PARTS) - in_use[1]),
    )


def most_headroom(limit: Weight, replicas: int) -> Weight:
    """What one of `replicas` may hold without using it, at one deployment."""
    return Weight(limit.requests // (FLEET_SPARE_PARTS * replicas), limit.tokens // (FLEET_SPARE_PARTS * replicas))
