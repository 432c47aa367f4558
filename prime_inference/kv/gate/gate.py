"""One engine's gate: the estimates it keeps and the decisions it counts. Pure; `now` is handed in.

Owned by the scheduler's side of the tier connector, one thread.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from prime_inference.kv.gate.decision import Choice, Decision, Policy, Reason, Segment, decide
from prime_inference.kv.gate.estimates import LoadInFlight, PrefillEstimate, TierEstimate


class LoadGate:
    def __init__(
        self, bytes_per_token: int, tiers: Mapping[str, TierEstimate], prefill: PrefillEstimate, policy: Policy
    ) -> None:
        self.tiers = tiers
        self.prefill = prefill
        self.decisions: Counter[tuple[Choice, Reason]] = Counter()
        self._bytes_per_token = bytes_per_token
        self._policy = policy

    def decide(self, new_tokens: int, hits: Sequence[tuple[str, int]], queued_tokens: int, now: float) -> Decision:
        """`hits`: (tier, tokens) in prompt order, after the engine's own cache; `queued_tokens`: to be computed first.

        The caller starts what is decided, with `started`, before it asks for the next request.
        """
        segments = []
        for name, tokens in hits:
            tier = self.tiers[name]
            segments.append(Segment(tokens, tier.next_bytes_per_s, tier.fixed_s, tier.in_flight, now - tier.sampled_at))
        decision = decide(
            new_tokens,
            segments,
            self._bytes_per_token,
            self.prefill.tokens_per_s,
            queued_tokens / self.prefill.tokens_per_s,
            self._policy,
        )
        self.decisions[decision.choice, decision.reason] += 1
        return decision

    def started(self, tier: str, now: float) -> LoadInFlight:
        return self.tiers[tier].started(now)

    def ended(self, tier: str, load: LoadInFlight, moved_tokens: int, now: float, unseen_s: float = 0.0) -> None:
        """`unseen_s`: of its time, how long it lay there before anybody looked."""
        self.tiers[tier].ended(load, moved_tokens * self._bytes_per_token, now, unseen_s)

    def late(self, tier: str, load: LoadInFlight, asked_tokens: int, now: float) -> None:
        """The load was given up at its deadline. It has still to end or to fail."""
        self.tiers[tier].late(load, asked_tokens * self._bytes_per_token, now)

    def missed(self, tier: str, load: LoadInFlight, asked_tokens: int, answered_at: float, now: float) -> None:
        """The tier said at `answered_at` that it has nothing."""
        self.tiers[tier].missed(load, asked_tokens * self._bytes_per_token, answered_at, now)

    def failed(self, tier: str, load: LoadInFlight, now: float) -> None:
        """The load ended in errors or was not used: it says nothing about bandwidth."""
        self.tiers[tier].failed(load, now)
