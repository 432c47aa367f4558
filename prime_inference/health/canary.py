"""Active checks of prefill-decode pairs: does this pair still say what it should? Pure.

A failed KV transfer may be answered with a 200 and wrong tokens (ai-dynamo/dynamo issue 12463), which no passive signal
shows. So each pair is asked the same prompt, greedily, under a salt never used before: the salt makes every cache miss,
so the pair must prefill and transfer, and leaves the tokens as they are. The answer must be the golden one, and the
engines must have been those that were asked for.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from prime_inference.health.verdicts import Check, Finding, Severity, Verdict

MIN_AGREEING = 2
"""Pairs that must agree before their answer counts as golden: one broken pair must not teach the others."""


class Ending(StrEnum):
    RIGHT = "right"
    WRONG_TOKENS = "wrong_tokens"
    NOT_TRANSFERRED = "not_transferred"
    """Answered, but not by this pair: no prefill worker took part, or another did. Nothing was tested."""
    LATE = "late"
    REFUSED = "refused"
    """Busy, draining, gone: says nothing about the pair's tokens."""
    BROKEN = "broken"
    """An error in place of an answer."""


@dataclass(frozen=True)
class Pair:
    prefill: int
    decode: int
    """Dynamo's instance ids."""

    @property
    def name(self) -> str:
        return f"{self.prefill:x}-{self.decode:x}"


@dataclass(frozen=True)
class Answer:
    """What came back. `status` 0: nothing in time."""

    status: int
    text: str = ""
    prefill: int | None = None
    decode: int | None = None
    seconds: float = 0.0
    error: str = ""


REFUSALS = frozenset({429, 503, 529})


def ending_of(pair: Pair, answer: Answer, golden: str | None) -> Ending:
    if answer.status == 0:
        return Ending.LATE
    if answer.status in REFUSALS:
        return Ending.REFUSED
    if answer.status != 200 or answer.error:
        return Ending.BROKEN
    if (answer.prefill, answer.decode) != (pair.prefill, pair.decode):
        return Ending.NOT_TRANSFERRED
    return Ending.RIGHT if golden is None or answer.text == golden else Ending.WRONG_TOKENS


def golden_of(answers: Iterable[tuple[Pair, Answer]]) -> str | None:
    """The answer most pairs give, if enough of them do and no other has as many; None: there is no golden one yet."""
    texts = Counter(a.text for pair, a in answers if ending_of(pair, a, None) is Ending.RIGHT and a.text)
    ranked = texts.most_common(2)
    if not ranked or ranked[0][1] < MIN_AGREEING or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]):
        return None
    return ranked[0][0]


def successor_of(answers: Iterable[tuple[Pair, Answer]]) -> str | None:
    """What all pairs that answered say, if no single worker, broken as it may be, has a part in all of them."""
    answered = [(pair, a.text) for pair, a in answers if ending_of(pair, a, None) is Ending.RIGHT]
    texts = {text for _, text in answered}
    several = all(len({getattr(pair, role) for pair, _ in answered}) > 1 for role in ("prefill", "decode"))
    return texts.pop() or None if len(texts) == 1 and several else None


def findings_of(pair: Pair, ending: Ending, detail: str = "") -> list[Finding]:
    """Wrong tokens are a fault of the pair's tokens; an error or silence, of its transfer; the rest is unknown."""
    tokens = {Ending.RIGHT: Verdict.OK, Ending.WRONG_TOKENS: Verdict.BAD}.get(ending, Verdict.UNKNOWN)
    transfer = {
        Ending.RIGHT: Verdict.OK,
        Ending.WRONG_TOKENS: Verdict.UNKNOWN,
        Ending.BROKEN: Verdict.BAD,
        Ending.LATE: Verdict.BAD,
    }.get(ending, Verdict.UNKNOWN)
    return [
        Finding(Check.CANARY_TOKENS, pair.name, tokens, detail, Severity.FATAL),
        Finding(Check.CANARY_TRANSFER, pair.name, transfer, detail, Severity.FATAL),
    ]


def suspects(endings: dict[Pair, Ending]) -> tuple[frozenset[int], frozenset[int]]:
    """Prefill and decode workers that fail with every partner, while a partner of theirs is right with another.

    With one broken worker its whole row (or column) of pairs is wrong; that tells which of the two it is.
    """
    wrong = (Ending.WRONG_TOKENS, Ending.BROKEN, Ending.LATE)
    tested = {pair: ending in wrong for pair, ending in endings.items() if ending in (*wrong, Ending.RIGHT)}

    def failing(role: str) -> frozenset[int]:
        workers = {getattr(pair, role) for pair in tested}
        bad = {w for w in workers if all(is_bad for pair, is_bad in tested.items() if getattr(pair, role) == w)}
        return frozenset(bad) if bad != workers else frozenset()

    return failing("prefill"), failing("decode")
