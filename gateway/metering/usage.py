"""Tokens a request used, as the engine counted them."""

from typing import Any, NamedTuple


class Usage(NamedTuple):
    """Token counts. `cached_tokens` is the part of the prompt whose KV was found instead of computed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cached_known: bool = True
    """False while the engine has not said how much of the prompt it found."""

    @property
    def uncached_tokens(self) -> int:
        """What a prefill had to compute."""
        return max(0, self.prompt_tokens - self.cached_tokens)

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


MOST_TOKENS = 2**53
"""No request has more; what says so is no count."""


def count_of(source: Any, name: str) -> int:
    """A count in a usage object, or in its details; 0 where either is left out. Raises ValueError for what is no count."""
    if not source:
        return 0
    value = source.get(name) if isinstance(source, dict) else "none"
    if value is None:
        return 0
    if type(value) is not int or not 0 <= value <= MOST_TOKENS:
        raise ValueError(f"{name} is no count")
    return value


def usage_of(body: dict[str, Any]) -> Usage | None:
    """Read an OpenAI `usage` object; details that the engine leaves out count as 0. None where what it says are no
    counts: then nobody knows, and an answer is not lost for it."""
    prompt_details = body.get("prompt_tokens_details") or {}
    try:
        return Usage(
            prompt_tokens=count_of(body, "prompt_tokens"),
            completion_tokens=count_of(body, "completion_tokens"),
            cached_tokens=count_of(prompt_details, "cached_tokens"),
            reasoning_tokens=count_of(body.get("completion_tokens_details"), "reasoning_tokens"),
            cached_known=prompt_details.get("cached_tokens") is not None,
        )
    except ValueError:
        return None
