"""What a verification case is: a request, and what must come back, streamed or not.

Ids are stable: a case that changes its meaning gets a new one. `source` names the public report that the case answers.
"""

from dataclasses import dataclass, field
from typing import Any

from prime_inference.toolcalls.verdict import Verdict

ToolEntry = dict[str, Any]


def function(name: str, parameters: Any, **more: Any) -> ToolEntry:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


@dataclass(frozen=True)
class Expected:
    """Exactly what the client must get. For cases whose text is known beforehand."""

    calls: tuple[tuple[str, str], ...]
    """Name and arguments, the arguments as JSON text; compared as text."""
    content: str = ""
    finish_reason: str = "tool_calls"
    verdicts: tuple[Verdict, ...] = ()
    """One a call; all Ok when empty."""


@dataclass(frozen=True)
class Case:
    id: str
    group: str
    source: str
    tools: tuple[ToolEntry, ...]
    messages: tuple[dict[str, Any], ...]
    tool_choice: Any = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    """Further fields of the request."""
    expected: Expected | None = None
    canned: str | None = None
    """The engine's text, for an engine that writes what the prompt says."""
    canned_finish: str = "stop"
    calls_wanted: bool = False
    """At least one call must come back (or the answer was cut by the token limit, which is counted apart)."""
    no_calls_wanted: bool = False
    most_calls: int | None = None
    only: tuple[str, ...] = ()
    """Names that may be called; empty for any declared one."""


def canned_messages(text: str, tokens_a_step: int, finish: str) -> tuple[dict[str, Any], ...]:
    """The prompt that tells an engine of canned text what to write, how many tokens at a time, and how to end."""
    return ({"role": "user", "content": f"WIRE={text.encode().hex()}/{tokens_a_step}/{finish}"},)
