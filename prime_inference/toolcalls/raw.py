"""Chat completions whose content still holds GLM's call markers, turned into ones with `tool_calls`.

For an upstream that leaves the text raw (a Dynamo frontend whose worker names no parser), so that this module
is the only owner of parsing. Pure: parsed chunks in, chunks out, and `new_id` makes the call ids.

Laws: content leaves with the chunk it came in, but for white space around calls and what may still become a marker.
A call leaves whole, in one delta, when its end was read; unary and streamed answers hold the same calls. An
undeclared name is passed on. A call whose text breaks GLM's form is passed on with its name and its own text as
arguments (InvalidJson), never repaired. A call cut off by the token limit does not leave at all; one that the model
itself left unfinished is in `dropped`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from prime_inference.toolcalls.choice import Choice, Mode
from prime_inference.toolcalls.declared import Declared
from prime_inference.toolcalls.glm import Broken, Call, Decoder, Event, Text
from prime_inference.toolcalls.reasoning import ReasoningSplit

Chunk = dict[str, Any]
_CALLED = "tool_calls"


@dataclass
class Certain:
    """What of an answer is certain: its thinking, its content, and whole calls as entries of `tool_calls`."""

    reasoning: str = ""
    content: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)


class RawAnswer:
    """One choice of one answer. `thinking`: whether the prompt left the thinking open."""

    def __init__(self, declared: Declared, choice: Choice, new_id: Callable[[], str], thinking: bool) -> None:
        self._split = ReasoningSplit(thinking)
        self._decoder = Decoder(declared.tools) if declared.tools and choice.mode is not Mode.NONE else None
        self._new_id = new_id
        self._calls = 0
        self.dropped: list[Broken] = []
        self.truncated: list[Broken] = []

    def feed(self, text: str) -> Certain:
        thought, answer = self._split.feed(text)
        if self._decoder is None:
            return Certain(thought, answer)
        return self._sort(thought, self._decoder.feed(answer), natural=True)

    def finish(self, reason: str) -> tuple[Certain, str]:
        """The rest, and the finish reason as the client should see it."""
        thought = self._split.finish()
        if self._decoder is None:
            return Certain(thought), reason
        natural = reason != "length"
        rest = self._sort(thought, self._decoder.finish(natural), natural)
        return rest, _CALLED if self._calls and reason == "stop" else reason

    @property
    def stray_markers(self) -> int:
        return 0 if self._decoder is None else self._decoder.stray_markers

    def _sort(self, thought: str, events: list[Event], natural: bool) -> Certain:
        result = Certain(thought)
        for event in events:
            match event:
                case Text(text):
                    result.content += text
                case Call(name, arguments):
                    result.calls.append(self._entry(name, arguments))
                case Broken(name, body, unfinished):
                    if unfinished:
                        (self.dropped if natural else self.truncated).append(event)
                    elif name:
                        result.calls.append(self._entry(name, body))
                    else:
                        self.dropped.append(event)
        return result

    def _entry(self, name: str, arguments: str) -> dict[str, Any]:
        entry = {
            "index": self._calls,
            "id": self._new_id(),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        self._calls += 1
        return entry


class RawStream:
    """All choices of one streamed answer."""

    def __init__(self, declared: Declared, choice: Choice, new_id: Callable[[], str], thinking: bool = True) -> None:
        self._make: Callable[[], RawAnswer] = lambda: RawAnswer(declared, choice, new_id, thinking)
        self.answers: dict[int, RawAnswer] = {}

    def feed(self, chunk: Chunk) -> Chunk | None:
        """The chunk to send in this one's place; None when nothing of it is certain yet."""
        if not chunk.get("choices"):
            return chunk
        choices = [made for choice in chunk["choices"] if (made := self._choice(choice)) is not None]
        return {**chunk, "choices": choices} if choices or chunk.get("usage") else None

    def _choice(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        index = choice.get("index", 0)
        if index not in self.answers:
            self.answers[index] = self._make()
        answer = self.answers[index]
        delta = dict(choice.get("delta") or {})
        before = delta.pop("content", None)
        certain = answer.feed(before or "")
        reason = choice.get("finish_reason")
        if reason is not None:
            rest, reason = answer.finish(reason)
            certain = Certain(
                certain.reasoning + rest.reasoning, certain.content + rest.content, certain.calls + rest.calls
            )
        if certain.reasoning:
            delta["reasoning_content"] = certain.reasoning
        if certain.content or (before == "" and not certain.calls):
            delta["content"] = certain.content
        if certain.calls:
            delta["tool_calls"] = certain.calls
        says_nothing = reason is None and not any(value is not None for value in delta.values())
        if says_nothing and before:
            return None
        return {**choice, "delta": delta, "finish_reason": reason}


def raw_response(
    response: dict[str, Any],
    declared: Declared,
    choice: Choice,
    new_id: Callable[[], str],
    thinking: bool = True,
) -> tuple[dict[str, Any], list[RawAnswer]]:
    """A whole, unstreamed answer, and what became of each of its choices."""
    choices, answers = [], []
    for given in response.get("choices", ()):
        answer = RawAnswer(declared, choice, new_id, thinking)
        message = dict(given.get("message") or {})
        first = answer.feed(message.get("content") or "")
        rest, reason = answer.finish(given.get("finish_reason") or "stop")
        content = first.content + rest.content
        calls = [{key: value for key, value in call.items() if key != "index"} for call in first.calls + rest.calls]
        message["content"] = content if content or not calls else None
        if first.reasoning + rest.reasoning:
            message["reasoning_content"] = first.reasoning + rest.reasoning
        if calls:
            message["tool_calls"] = calls
        choices.append({**given, "message": message, "finish_reason": reason})
        answers.append(answer)
    return {**response, "choices": choices}, answers
