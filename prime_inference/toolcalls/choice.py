"""`tool_choice`, read: which tools may be called, and whether one must be."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from prime_inference.toolcalls.errors import BadToolChoice


class Mode(StrEnum):
    AUTO = "auto"
    REQUIRED = "required"
    NONE = "none"
    NAMED = "named"


@dataclass(frozen=True)
class Choice:
    mode: Mode
    allowed: tuple[str, ...]
    """Names of the declared tools that may be called."""

    @property
    def must_call(self) -> bool:
        return self.mode in (Mode.REQUIRED, Mode.NAMED)


def read_choice(tool_choice: Any, declared: Mapping[str, Any]) -> Choice:
    """`tool_choice` as the OpenAI API defines it: a word, one named tool, or `allowed_tools` with a mode of its own."""
    names = tuple(declared)
    if tool_choice is None:
        return Choice(Mode.AUTO if names else Mode.NONE, names)
    if isinstance(tool_choice, str):
        return _word(tool_choice, names)
    kind = tool_choice.get("type") if isinstance(tool_choice, dict) else None
    if kind == "function" and isinstance(tool_choice.get("function"), dict):
        name = tool_choice["function"].get("name")
        if name not in names:
            raise BadToolChoice(f"tool_choice: the tool {name!r} is not declared")
        return Choice(Mode.NAMED, (name,))
    if kind == "allowed_tools" and isinstance(tool_choice.get("allowed_tools"), dict):
        return _allowed(tool_choice["allowed_tools"], names)
    raise BadToolChoice(
        "tool_choice: must be 'none', 'auto', 'required', {'type': 'function', 'function': {'name': ..}}"
        " or {'type': 'allowed_tools', 'allowed_tools': {..}}"
    )


def _word(word: str, names: tuple[str, ...]) -> Choice:
    if word == Mode.NONE:
        return Choice(Mode.NONE, ())
    if word == Mode.AUTO:
        return Choice(Mode.AUTO if names else Mode.NONE, names)
    if word == Mode.REQUIRED:
        if not names:
            raise BadToolChoice("tool_choice: 'required' needs at least one tool")
        return Choice(Mode.REQUIRED, names)
    raise BadToolChoice(f"tool_choice: {word!r} is none of 'none', 'auto', 'required'")


def _allowed(allowed: dict[str, Any], names: tuple[str, ...]) -> Choice:
    wanted: list[str] = []
    entries = allowed.get("tools")
    for entry in entries if isinstance(entries, list) else ():
        function = entry.get("function") if isinstance(entry, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if name not in names:
            raise BadToolChoice(f"tool_choice: the tool {name!r} is not declared")
        if name not in wanted:
            wanted.append(name)
    mode = allowed.get("mode")
    if not wanted or mode not in (Mode.AUTO, Mode.REQUIRED):
        raise BadToolChoice("tool_choice: allowed_tools needs tools, and the mode 'auto' or 'required'")
    return Choice(Mode(mode), tuple(wanted))
