"""What the tier connector is doing for each waiting request. Pure; `now` is handed in.

    (asked for the first time) -> COMPUTE                 nothing is looked up, so nothing is fetched
                               -> LOOK_UP -> WAIT ... -> (found)    -> loading -> (finished)
                                                      -> GIVE_UP    at the decision's deadline; compute
                                                                    -> (answered), if it is after all

LMCache's server begins to fetch from L2 when it is asked, before it says how much there is. So the decision is made on
the most that the tier could hold, and a part is taken by asking for a shorter prompt. One load is measured from the
question to the end of the copy into the engine, L1 and L2 together: LMCache does not tell them apart.
"""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from prime_inference.kv.capacity import CHUNK_TOKENS
from prime_inference.kv.gate.decision import Choice
from prime_inference.kv.gate.estimates import LoadInFlight
from prime_inference.kv.gate.gate import LoadGate


class Step(StrEnum):
    COMPUTE = "compute"
    LOOK_UP = "look_up"
    WAIT = "wait"
    GIVE_UP = "give_up"


class LoadEnd(StrEnum):
    LOADED = "loaded"
    MISS = "miss"
    """The tier held nothing beyond the engine's own cache."""
    LATE = "late"
    """No answer by the deadline; the prompt was computed."""
    FAILED = "failed"
    """The copy into the engine failed; the prompt was computed."""
    NOT_USED = "not_used"
    """The request ended, or was admitted without the load."""


@dataclass(frozen=True)
class Ask:
    """`end_tokens`: look the prompt up to here (LOOK_UP only)."""

    step: Step
    end_tokens: int = 0


@dataclass
class _Plan:
    load: LoadInFlight
    asked_tokens: int
    deadline: float
    answered_at: float | None = None
    unseen_s: float = 0.0
    """From the answer until somebody looked."""
    found_tokens: int = 0


@dataclass(frozen=True)
class EndedLoad:
    """`tokens` and `seconds` only of a load that was LOADED, else 0."""

    end: LoadEnd
    tokens: int = 0
    seconds: float = 0.0


class LoadPlans:
    """One engine's waiting requests. Owned by the scheduler's side of the connector, one thread."""

    def __init__(self, gate: LoadGate, tier: str) -> None:
        self.gate = gate
        self.ends: Counter[LoadEnd] = Counter()
        self.ended: list[EndedLoad] = []
        """Since whoever reports them last took them."""
        self._tier = tier
        self._computing: set[str] = set()
        self._plans: dict[str, _Plan] = {}
        self._late: dict[str, LoadInFlight] = {}

    def ask(self, request: str, prompt_tokens: int, own_tokens: int, queued_tokens: int, now: float) -> Ask:
        """What to do now for a request of which the engine's own cache holds `own_tokens`.

        The last token of a prompt is always computed, so it is never counted as loadable.
        """
        if request in self._computing:
            return Ask(Step.COMPUTE)
        plan = self._plans.get(request)
        if plan is not None:
            if plan.found_tokens == 0 and now >= plan.deadline:
                self._end(request, LoadEnd.LATE, now)
                self._computing.add(request)
                return Ask(Step.GIVE_UP)
            return Ask(Step.WAIT)
        first_chunk = own_tokens // CHUNK_TOKENS
        loadable = max(0, (prompt_tokens - 1) // CHUNK_TOKENS - first_chunk) * CHUNK_TOKENS
        decision = self.gate.decide(prompt_tokens - own_tokens, [(self._tier, loadable)], queued_tokens, now)
        if decision.choice is Choice.RECOMPUTE:
            self._computing.add(request)
            return Ask(Step.COMPUTE)
        load = self.gate.started(self._tier, now)
        self._plans[request] = _Plan(load, decision.tokens, now + decision.deadline_s)
        return Ask(Step.LOOK_UP, first_chunk * CHUNK_TOKENS + decision.tokens)

    def waits_for(self, request: str) -> bool:
        """It was asked for, and is neither loaded nor given up."""
        return request in self._plans

    def found(self, request: str, tokens: int, now: float, answered_at: float | None = None) -> None:
        """The lookup was answered: so many tokens beyond the engine's own are ready to be copied in. `answered_at`: when, if it
        is known; a busy engine looks seconds later. May be said again while the load waits for blocks."""
        plan = self._plans.get(request)
        if plan is None:
            return
        plan.found_tokens = tokens
        plan.answered_at = answered_at
        plan.unseen_s = now - answered_at if answered_at is not None else 0.0
        if tokens == 0:
            self._end(request, LoadEnd.MISS, now)
            self._computing.add(request)

    def finished(self, request: str, whole: bool, now: float) -> None:
        """The copy into the engine ended."""
        if request in self._plans:
            self._end(request, LoadEnd.LOADED if whole else LoadEnd.FAILED, now)

    def answered(self, request: str, tokens: int, at: float) -> None:
        """A lookup that was given up had its answer at `at`, while the prompt was computed. What came too late for its
        prompt still says how fast the tier is: a probe is nearly always late, since it may cost its prompt so little."""
        late = self._late.pop(request, None)
        if late is None:
            return
        if tokens > 0:
            self.gate.ended(self._tier, late, tokens, at)
        else:
            self.gate.failed(self._tier, late, at)

    def admitted(self, request: str, now: float) -> None:
        """The engine computes the request from its beginning."""
        self._computing.discard(request)
        if request in self._plans:
            self._end(request, LoadEnd.NOT_USED, now)

    def forget(self, request: str, now: float) -> None:
        """The request has left the engine."""
        self.admitted(request, now)
        if (late := self._late.pop(request, None)) is not None:
            self.gate.failed(self._tier, late, now)

    def _end(self, request: str, end: LoadEnd, now: float) -> None:
        plan = self._plans.pop(request)
        self.ends[end] += 1
        loaded = end is LoadEnd.LOADED
        took_s = now - plan.load.started_at - plan.unseen_s
        self.ended.append(EndedLoad(end, plan.found_tokens, took_s) if loaded else EndedLoad(end))
        if loaded:
            self.gate.ended(self._tier, plan.load, plan.found_tokens, now, plan.unseen_s)
        elif end is LoadEnd.LATE:
            self.gate.late(self._tier, plan.load, plan.asked_tokens, now)
            self._late[request] = plan.load
        elif end is LoadEnd.MISS and plan.answered_at is not None:
            self.gate.missed(self._tier, plan.load, plan.asked_tokens, plan.answered_at, now)
        else:
            self.gate.failed(self._tier, plan.load, now)
