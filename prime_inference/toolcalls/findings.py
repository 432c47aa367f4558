"""What a grammar does not hold as the schema says it. Nothing here is lost: the final judge uses the client's own
schema."""

from dataclasses import dataclass
from enum import StrEnum


class Effect(StrEnum):
    LOOSER = "looser"
    """The grammar lets through what the schema forbids; only the judge sees it."""
    NARROWER = "narrower"
    """The grammar forbids some of what the schema allows; the model says it another way."""


@dataclass(frozen=True)
class Finding:
    effect: Effect
    path: str
    """JSON pointer into the client's parameters (after local references were followed)."""
    keyword: str
    reason: str

    def __str__(self) -> str:
        return f"{self.effect} at {self.path or '/'} ({self.keyword}): {self.reason}"
