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


def usage_of(body: dict[str, Any]) -> Usage:
    """Read an OpenAI `usage` object; details that the engine leaves out count as 0."""
    prompt_details = body.get("prompt_tokens_details") or {}
    cached = prompt_details.get("cached_tokens")
    completion_details = body.get("completion_tokens_details") or {}
    return Usage(
        prompt_tokens=int(body.get("prompt_tokens") or 0),
        completion_tokens=int(body.get("completion_tokens") or 0),
        cached_tokens=int(cached or 0),
        reasoning_tokens=int(completion_details.get("reasoning_tokens") or 0),
        cached_known=cached is not None,
    )
