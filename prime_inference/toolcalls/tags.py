"""The structural tag of a request: which texts the engine may write, as data. Nothing here needs xgrammar.

A tag is JSON in xgrammar's `structural_tag` format, compiled by `compile_process` at the door and by the engine
later. Where the prompt leaves the thinking open, the tag begins with it (`Thinking.IN_TAG`, ADR 0408): text, then
`</think>`, then the answer. An engine with a gate of its own (vLLM's `--reasoning-parser`) must not get such a tag: it
would reject the `</think>` that the gate has consumed.
"""

import hashlib
import json
from dataclasses import replace
from enum import StrEnum
from typing import Any

from prime_inference.toolcalls.choice import Choice, Mode
from prime_inference.toolcalls.declared import Declared, Tool
from prime_inference.toolcalls.glm import CALL, CALL_END, KEY, KEY_END, VALUE, VALUE_END

THINK, THINK_END = "<think>", "</think>"
_IN_TEXT = [THINK, THINK_END, CALL_END, KEY, KEY_END, VALUE, VALUE_END]
"""Markers that have no place in text. `<tool_call>` has: it begins a call."""

MOST_SPACE = 2
"""White space in a row, around values and inside JSON. Without a bound a small model writes line breaks until its budget
ends (seen with SmolLM2). A line break and one more is what the newline form and compact JSON need."""


_IN_THOUGHT = [THINK, THINK_END, CALL]
"""A call inside the thinking would never be executed. The other markers are harmless there: a model may think of them."""


class Thinking(StrEnum):
    BY_ENGINE = "by_engine"
    """The tag is for the answer alone: the prompt has closed the thinking, or the engine holds the grammar back."""
    IN_TAG = "in_tag"
    """The prompt has opened the thinking, and the tag starts there."""


def build_tag(
    declared: Declared,
    choice: Choice,
    parallel: bool = True,
    thinking: Thinking = Thinking.BY_ENGINE,
    text: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """`text`: the form of an answer that calls nothing, where the client asks for one; free text otherwise."""
    calls = [_call(declared.tools[name]) for name in choice.allowed]
    if text is not None and choice.mode is Mode.AUTO:
        answer = {"type": "or", "elements": [text, _answer(calls, replace(choice, mode=Mode.REQUIRED), parallel)]}
    else:
        answer = _answer(calls, choice, parallel)
    return {"type": "structural_tag", "format": after_thinking(answer) if thinking is Thinking.IN_TAG else answer}


def after_thinking(answer: dict[str, Any]) -> dict[str, Any]:
    thought = {"type": "tag", "begin": "", "content": {"type": "any_text", "excludes": _IN_THOUGHT}, "end": THINK_END}
    return {"type": "sequence", "elements": [thought, answer]}


def _answer(calls: list[dict[str, Any]], choice: Choice, parallel: bool) -> dict[str, Any]:
    if choice.mode is Mode.NONE or not calls:
        return {"type": "any_text", "excludes": [*_IN_TEXT, CALL]}
    if choice.mode is Mode.NAMED:
        return calls[0]
    return {
        "type": "triggered_tags",
        "triggers": [CALL],
        "tags": calls,
        "excludes": _IN_TEXT,
        "at_least_one": choice.mode is Mode.REQUIRED,
        "stop_after_first": not parallel,
    }


def _call(tool: Tool) -> dict[str, Any]:
    return {
        "type": "tag",
        "begin": f"{CALL}{tool.name}",
        "content": {
            "type": "json_schema",
            "style": "glm_xml",
            "json_schema": tool.enforced,
            "max_whitespace_cnt": MOST_SPACE,
        },
        "end": CALL_END,
    }


def tag_key(
    declared: Declared,
    choice: Choice,
    parallel: bool = True,
    thinking: Thinking = Thinking.BY_ENGINE,
    text: dict[str, Any] | None = None,
) -> str:
    """The key under which a tag's compilation is remembered: equal for equal tags, without writing the tag out."""
    form = "" if text is None else key_of(text)
    parts = [
        str(choice.mode),
        str(parallel),
        str(thinking),
        form,
        *(declared.tools[name].digest for name in choice.allowed),
    ]
    return hashlib.sha256("/".join(parts).encode()).hexdigest()


def key_of(tag: dict[str, Any]) -> str:
    """The key for any other tag."""
    return hashlib.sha256(json.dumps(tag).encode()).hexdigest()
