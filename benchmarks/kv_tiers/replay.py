"""A virtual clock replays one trace through one engine and one tier, under different rules for taking a hit.

The model, in the article's numbers (GLM-5.3 in FP8, B300, 450 requests in 374 s unless asked otherwise):

- engine: one prompt at a time, first come first served; a prefill takes (new tokens) / R times a recorded factor
- tier: the loads in flight share its bandwidth; each takes t0 and then its bytes, times a recorded factor
- asynchronous load: the request waits for its load while the engine computes others, then takes its place in the
  engine's queue by arrival; at its deadline it goes on with the whole chunks it has
- synchronous load: the engine itself stands still during the load

Recorded factors are real service times on this project's machine divided by their median at the same size and
concurrency (record_service_times.py). A request has the same factors under every rule, so rules differ in nothing else.
"""

import heapq
import random
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from prime_inference.kv.capacity import CHUNK_TOKENS, GLM_5_3_FP8
from prime_inference.kv.gate.decision import Choice, Policy
from prime_inference.kv.gate.estimates import LoadInFlight, PrefillEstimate, TierEstimate
from prime_inference.kv.gate.gate import LoadGate

PREFILL_TOKENS_PER_S = 53_000
FIXED_S = 0.002
"""t0: lookup, one scheduler step, first byte."""
BYTES_PER_TOKEN = GLM_5_3_FP8.bytes_per_token
TIER = "l2"


class Rule(StrEnum):
    NONE = "no tier"
    SYNC = "always, synchronous"
    ASYNC = "always, asynchronous"
    GATE = "gate"


@dataclass(frozen=True)
class Arrival:
    at: float
    tokens: int
    hit_tokens: int
    prefill_factor: float
    load_factor: float


@dataclass
class Request:
    arrival: Arrival
    loaded_tokens: int = 0
    first_token_at: float = 0.0


@dataclass
class Load:
    """`left_bytes` shrinks as virtual time passes; `ready_at` is when t0 is over and bytes begin to move."""

    request: Request
    tokens: int
    total_bytes: float
    left_bytes: float
    ready_at: float
    deadline: float
    handle: LoadInFlight | None


@dataclass
class Outcome:
    ttft_s: list[float] = field(default_factory=list)
    loaded_tokens: int = 0
    hit_tokens: int = 0
    decisions: dict[str, int] = field(default_factory=dict)

    def percentile(self, share: float) -> float:
        ordered = sorted(self.ttft_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def make_trace(
    requests: int,
    per_s: float,
    prefill_factors: Sequence[float],
    load_factors: Sequence[float],
    seed: int,
    hit_share: float = 0.9,
) -> list[Arrival]:
    """Poisson arrivals of 4k to 48k tokens (median 16k); `hit_share` of them find most of their prompt in the tier."""
    draw = random.Random(seed)
    at = 0.0
    trace = []
    for _ in range(requests):
        at += draw.expovariate(per_s)
        tokens = int(min(49_152, max(4_096, draw.lognormvariate(9.7, 0.5))))
        hit = int(tokens * draw.uniform(0.5, 0.98)) // CHUNK_TOKENS * CHUNK_TOKENS if draw.random() < hit_share else 0
        trace.append(Arrival(at, tokens, hit, draw.choice(prefill_factors), draw.choice(load_factors)))
    return trace


class Replay:
    """One run. `bandwidth` gives the tier's bytes a second at a virtual time (changes are seen at event times)."""

    def __init__(
        self, trace: Sequence[Arrival], rule: Rule, bandwidth: Callable[[float], float], known_bytes_per_s: float
    ) -> None:
        self._trace = trace
        self._rule = rule
        self._bandwidth = bandwidth
        self._now = 0.0
        self._waiting: list[tuple[float, int, Request]] = []
        self._loads: list[Load] = []
        self._busy_until: float | None = None
        self._serving: tuple[Request, float] | None = None
        self._queued_tokens = 0
        self._gate = LoadGate(
            BYTES_PER_TOKEN,
            {TIER: TierEstimate(known_bytes_per_s, FIXED_S, 0.0)},
            PrefillEstimate(PREFILL_TOKENS_PER_S),
            Policy(),
        )
        self._outcome = Outcome()

    def run(self) -> Outcome:
        arrivals = deque(self._trace)
        while arrivals or self._waiting or self._loads or self._serving:
            self._advance(min(self._next_times(arrivals)))
            self._end_loads()
            if self._serving and self._busy_until is not None and self._busy_until <= self._now:
                self._end_prefill()
            while arrivals and arrivals[0].at <= self._now:
                self._arrive(Request(arrivals.popleft()))
            if not self._serving and self._waiting:
                self._begin_prefill(heapq.heappop(self._waiting)[2])
        self._outcome.decisions = {f"{choice} {reason}": n for (choice, reason), n in self._gate.decisions.items()}
        return self._outcome

    def _next_times(self, arrivals: deque[Arrival]) -> list[float]:
        times = [arrivals[0].at] if arrivals else []
        if self._busy_until is not None:
            times.append(self._busy_until)
        moving = [load for load in self._loads if load.ready_at <= self._now]
        for load in self._loads:
            times.append(load.deadline)
            if load.ready_at > self._now:
                times.append(load.ready_at)
            else:
                each = self._bandwidth(self._now) / len(moving)
                # Never zero: a rest too small to move virtual time would stop the clock.
                times.append(self._now + max(load.left_bytes / each, 1e-9))
        return times

    def _advance(self, to: float) -> None:
        moving = [load for load in self._loads if load.ready_at <= self._now]
        if moving:
            moved = self._bandwidth(self._now) / len(moving) * (to - self._now)
            for load in moving:
                load.left_bytes -= moved
        self._now = to

    def _end_loads(self) -> None:
        for load in [each for each in self._loads if each.left_bytes <= 1.0 or each.deadline <= self._now]:
            self._loads.remove(load)
            share = 1.0 if load.left_bytes <= 1.0 else 1.0 - load.left_bytes / load.total_bytes
            tokens = int(share * load.tokens) // CHUNK_TOKENS * CHUNK_TOKENS
            if load.handle is not None:
                if tokens:
                    self._gate.ended(TIER, load.handle, tokens, self._now)
                else:
                    self._gate.late(TIER, load.handle, load.tokens, self._now)
                    self._gate.failed(TIER, load.handle, self._now)  # nothing of it moves any more
            self._queue(load.request, tokens)

    def _arrive(self, request: Request) -> None:
        arrival = request.arrival
        self._outcome.hit_tokens += arrival.hit_tokens
        if self._rule is Rule.ASYNC and arrival.hit_tokens:
            self._begin_load(request, arrival.hit_tokens, deadline=float("inf"), handle=None)
        elif self._rule is Rule.GATE:
            hits = [(TIER, arrival.hit_tokens)] if arrival.hit_tokens else []
            decision = self._gate.decide(arrival.tokens, hits, self._tokens_ahead(), self._now)
            if decision.choice is Choice.RECOMPUTE:
                self._queue(request, 0)
            else:
                handle = self._gate.started(TIER, self._now)
                self._begin_load(request, decision.tokens, self._now + decision.deadline_s, handle)
        else:
            self._queue(request, 0)

    def _tokens_ahead(self) -> int:
        running = max(0.0, (self._busy_until or 0.0) - self._now) * PREFILL_TOKENS_PER_S if self._serving else 0.0
        return self._queued_tokens + int(running)

    def _begin_load(self, request: Request, tokens: int, deadline: float, handle: LoadInFlight | None) -> None:
        total = tokens * BYTES_PER_TOKEN * request.arrival.load_factor
        self._loads.append(Load(request, tokens, total, total, self._now + FIXED_S, deadline, handle))

    def _queue(self, request: Request, loaded_tokens: int) -> None:
        request.loaded_tokens = loaded_tokens
        self._outcome.loaded_tokens += loaded_tokens
        self._queued_tokens += request.arrival.tokens - loaded_tokens
        heapq.heappush(self._waiting, (request.arrival.at, id(request), request))

    def _begin_prefill(self, request: Request) -> None:
        arrival = request.arrival
        new_tokens = arrival.tokens - request.loaded_tokens
        self._queued_tokens -= new_tokens
        stood_still_s = 0.0
        if self._rule is Rule.SYNC and arrival.hit_tokens:
            moved = arrival.hit_tokens * BYTES_PER_TOKEN * arrival.load_factor
            stood_still_s = FIXED_S + moved / self._bandwidth(self._now)
            new_tokens -= arrival.hit_tokens
            self._outcome.loaded_tokens += arrival.hit_tokens
        prefill_s = new_tokens / PREFILL_TOKENS_PER_S * arrival.prefill_factor
        self._serving = (request, prefill_s)
        self._busy_until = self._now + stood_still_s + prefill_s

    def _end_prefill(self) -> None:
        assert self._serving is not None
        request, prefill_s = self._serving
        self._outcome.ttft_s.append(self._now - request.arrival.at)
        self._gate.prefill.observed(request.arrival.tokens - request.loaded_tokens, prefill_s)
        self._serving, self._busy_until = None, None


def factors(seconds: Sequence[float]) -> list[float]:
    """Service times as multiples of their median."""
    middle = statistics.median(seconds)
    return [each / middle for each in seconds]
