"""Load, load a part, or compute. Pure.

With C tokens in the engine's own cache, N the prompt, Q the time until the engine would begin with it, R its marginal
prefill rate and load(L) the estimated time to load the next L tokens, the first token comes at about

    ttft(L) = max(Q, load(L)) + (N - C - L) / R

since a load is asynchronous and runs while others are computed. So a load that ends within Q is free even from a tier
slower than break-even, and there the best L is the longest that does. ttft is piecewise linear in L, with corners only
at the end of a tier's segment and where load(L) = Q. Loads are whole chunks, so the last chunk that ends within Q and the
one after it, which waits for the tier by less than it takes to compute, are both candidates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from prime_inference.kv.capacity import CHUNK_TOKENS, break_even_bytes_per_s, load_seconds, recompute_seconds


class Choice(StrEnum):
    TAKE_ALL = "take_all"
    TAKE_PART = "take_part"
    RECOMPUTE = "recompute"


class Reason(StrEnum):
    NO_HIT = "no_hit"
    """No tier holds more than the engine's own cache; nothing was or will be fetched."""
    HIDDEN = "hidden"
    """The load ends before the engine would have begun."""
    FASTER = "faster"
    """The load takes less time than computing what it brings."""
    SLOWER = "slower"
    """The tier is below break-even for this engine now."""
    TOO_SHORT = "too_short"
    """The tier is above break-even, but the fixed cost eats what so short a hit gains."""
    WITHIN_MARGIN = "within_margin"
    """Faster by less than the estimates are worth."""
    OVER_DEADLINE = "over_deadline"
    """No part that would pay can be loaded within the longest deadline."""
    TIER_BUSY = "tier_busy"
    """As many loads in flight as are allowed."""
    PROBE = "probe"
    """A small part of a hit that would not pay, to learn whether the tier has become faster."""


@dataclass(frozen=True)
class Policy:
    """What an operator may set. Times in seconds, shares of the time a recompute would take."""

    margin: float = 0.1
    """A hit must save this share. Below it the error of the estimates decides, not the tier."""
    longest_deadline_s: float = 2.0
    """No request waits longer than this for a tier, whatever the estimates say."""
    slack: float = 1.35
    """A load gets this many times its estimate, then its whole chunks are used and the rest is computed. At 2.0 a tier
    that turns slow every half minute cost an idle engine 4 % at p99 in the replay, at 1.35 nothing; lower gains no more
    and cuts loads off for ordinary noise."""
    loads_in_flight: int = 32
    """More share the tier without moving more bytes, and hold blocks of the engine meanwhile."""
    probe_after_s: float = 10.0
    """An estimate that keeps hits away is checked again after this long without a load."""
    probe_share: float = 0.03
    """What a probe may cost the request that carries it."""


@dataclass(frozen=True)
class Segment:
    """The next tokens of the prompt that one tier holds, a multiple of CHUNK_TOKENS, after the segments before it."""

    tokens: int
    bytes_per_s: float
    """What one more load can expect from the tier now (TierEstimate.next_bytes_per_s)."""
    fixed_s: float
    in_flight: int = 0
    idle_s: float = 0.0
    """Time since the tier's estimate last had a sample (only the first segment is probed)."""


@dataclass(frozen=True)
class Decision:
    """`tokens` to load after the engine's own, under `deadline_s` from now; the rest is computed."""

    choice: Choice
    reason: Reason
    tokens: int
    deadline_s: float
    load_s: float
    recompute_s: float
    """Estimated time to first token without any load, to be compared with what came out."""


def decide(
    new_tokens: int,
    segments: Sequence[Segment],
    bytes_per_token: int,
    tokens_per_s: float,
    queue_s: float,
    policy: Policy,
) -> Decision:
    """What to do with a prompt of which `new_tokens` (N - C) are not in the engine's own cache.

    The deadline is never later than the moment at which computing the tokens would have caught up (Q + L / R), so that
    a tier that fails altogether costs at most the time of computing the hit once more.
    """
    recompute_s = queue_s + recompute_seconds(new_tokens, tokens_per_s)

    def refuse(reason: Reason) -> Decision:
        return Decision(Choice.RECOMPUTE, reason, 0, 0.0, 0.0, recompute_s)

    hit_tokens = min(sum(segment.tokens for segment in segments), new_tokens // CHUNK_TOKENS * CHUNK_TOKENS)
    if hit_tokens == 0:
        return refuse(Reason.NO_HIT)
    if any(segment.in_flight >= policy.loads_in_flight for segment in segments):
        return refuse(Reason.TIER_BUSY)

    def ttft_s(tokens: int) -> float:
        load_s = _load_seconds(tokens, segments, bytes_per_token)
        return max(queue_s, load_s) + recompute_seconds(new_tokens - tokens, tokens_per_s)

    candidates = _corners(hit_tokens, segments, bytes_per_token, queue_s, policy.longest_deadline_s)
    best = min(candidates, key=lambda tokens: (ttft_s(tokens), tokens), default=0)
    saved_s = recompute_s - ttft_s(best) if best else 0.0
    if saved_s > policy.margin * recompute_s:
        load_s = _load_seconds(best, segments, bytes_per_token)
        deadline_s = min(
            policy.longest_deadline_s,
            max(policy.slack * load_s, queue_s),
            queue_s + recompute_seconds(best, tokens_per_s),
        )
        return Decision(
            Choice.TAKE_ALL if best == hit_tokens else Choice.TAKE_PART,
            Reason.HIDDEN if load_s <= queue_s else Reason.FASTER,
            best,
            deadline_s,
            load_s,
            recompute_s,
        )
    reason = _why_not(candidates, saved_s, segments, bytes_per_token, tokens_per_s)
    first = segments[0]
    if first.idle_s >= policy.probe_after_s and first.in_flight == 0:
        return Decision(
            Choice.TAKE_PART,
            Reason.PROBE,
            CHUNK_TOKENS,
            min(policy.longest_deadline_s, policy.probe_share * recompute_s),
            _load_seconds(CHUNK_TOKENS, segments, bytes_per_token),
            recompute_s,
        )
    return refuse(reason)


def _load_seconds(tokens: int, segments: Sequence[Segment], bytes_per_token: int) -> float:
    """One tier after the other, each with its own fixed cost."""
    total_s = 0.0
    for segment in segments:
        from_here = min(tokens, segment.tokens)
        total_s += load_seconds(from_here, bytes_per_token, segment.bytes_per_s, segment.fixed_s)
        tokens -= from_here
    return total_s


def _corners(
    hit_tokens: int, segments: Sequence[Segment], bytes_per_token: int, queue_s: float, longest_s: float
) -> list[int]:
    """Lengths worth looking at, whole chunks, none of which takes longer than `longest_s` to load."""
    corners = set()
    before_tokens, before_s = 0, 0.0
    for segment in segments:
        end = min(before_tokens + segment.tokens, hit_tokens)
        corners.add(end)
        for limit_s in (queue_s, longest_s):
            room_s = max(0.0, limit_s - before_s - segment.fixed_s)
            fitting = math.floor(room_s * segment.bytes_per_s / bytes_per_token) if room_s < math.inf else end
            last_within = before_tokens + fitting // CHUNK_TOKENS * CHUNK_TOKENS
            corners |= {min(end, last_within), min(end, last_within + CHUNK_TOKENS)}
        before_s += load_seconds(end - before_tokens, bytes_per_token, segment.bytes_per_s, segment.fixed_s)
        before_tokens = end
    return sorted(
        tokens for tokens in corners if tokens and _load_seconds(tokens, segments, bytes_per_token) <= longest_s
    )


def _why_not(
    candidates: Sequence[int], saved_s: float, segments: Sequence[Segment], bytes_per_token: int, tokens_per_s: float
) -> Reason:
    if not candidates:
        return Reason.OVER_DEADLINE
    if saved_s > 0.0:
        return Reason.WITHIN_MARGIN
    if segments[0].bytes_per_s > break_even_bytes_per_s(bytes_per_token, tokens_per_s):
        return Reason.TOO_SHORT
    return Reason.SLOWER
