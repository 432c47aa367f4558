"""Chat completions whose content still holds GLM's call markers, turned into ones with `tool_calls`.

For an upstream that leaves the text raw (a Dynamo frontend whose worker names no tool parser), so that this module
is the only owner of parsing. Pure: parsed chunks in, chunks out, and `new_id` makes the call ids.

Laws: content leaves with the chunk it came in, but for white space around calls and what may still become a marker.
A call leaves whole, in one delta, when its end was read; unary and streamed answers hold the same calls. An
undeclared name is passed on. A call whose text breaks GLM's form is passed on with its name and its own text as
arguments (InvalidJson), never repaired. A call cut off by the token limit does not leave at all; one that the model
itself left unfinished is in `dropped`.
"""

from collections.abc import Callable
from typing import Any

from prime_inference.toolcalls.choice import Choice, Mode
from prime_inference.toolcalls.declared import Declared
from prime_inference.toolcalls.glm import Broken, Call, Decoder, Event, Text

Chunk = dict[str, Any]
_CALLED = "tool_calls"


class RawAnswer:
    """One choice of one answer."""

    def __init__(self, declared: Declared, choice: Choice, new_id: Callable[[], str]) -> None:
        self._decoder = Decoder(declared.tools) if declared.tools and choice.mode is not Mode.NONE else None
        self._new_id = new_id
        self._calls = 0
        self.dropped: list[Broken] = []
        self.truncated: list[Broken] = []

    def feed(self, content: str) -> tuple[str, list[dict[str, Any]]]:
        """What of the answer's text is certain now: content, and whole calls as entries of `tool_calls`."""
        if self._decoder is None:
            return content, []
        return self._sort(self._decoder.feed(content), natural=True)

    def finish(self, reason: str) -> tuple[str, list[dict[str, Any]], str]:
        """The rest, and the finish reason as the client should see it."""
        if self._decoder is None:
            return "", [], reason
        natural = reason != "length"
        content, calls = self._sort(self._decoder.finish(natural), natural)
        return content, calls, _CALLED if self._calls and reason == "stop" else reason

    @property
    def stray_markers(self) -> int:
        return 0 if self._decoder is None else self._decoder.stray_markers

    def _sort(self, events: list[Event], natural: bool) -> tuple[str, list[dict[str, Any]]]:
        texts: list[str] = []
        calls: list[dict[str, Any]] = []
        for event in events:
            match event:
                case Text(text):
                    texts.append(text)
                case Call(name, arguments):
                    calls.append(self._entry(name, arguments))
                case Broken(name, body, unfinished):
                    if unfinished:
                        (self.dropped if natural else self.truncated).append(event)
                    elif name:
                        calls.append(self._entry(name, body))
                    else:
                        self.dropped.append(event)
        return "".join(texts), calls

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

    def __init__(self, declared: Declared, choice: Choice, new_id: Callable[[], str]) -> None:
        self._make: Callable[[], RawAnswer] = lambda: RawAnswer(declared, choice, new_id)
        self.answers: dict[int, RawAnswer] = {}

    def feed(self, chunk: Chunk) -> Chunk | None:
        """The chunk to send in this one's place; None when nothing of it is certain yet."""
        if not chunk.get("choices"):
            return chunk
        choices = [made for choice in chunk["choices"] if (made := self._choice(choice)) is not None]
        return {**chunk, "choices": choices} if choices or chunk.get("usage") else None

    def _choice(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        answer = self.answers.setdefault(choice.get("index", 0), self._make())
        delta = dict(choice.get("delta") or {})
        before = delta.pop("content", None)
        content, calls = answer.feed(before or "")
        reason = choice.get("finish_reason")
        if reason is not None:
            rest, more, reason = answer.finish(reason)
            content, calls = content + rest, [*calls, *more]
        if content or (before == "" and not calls):
            delta["content"] = content
        if calls:
            delta["tool_calls"] = calls
        says_nothing = reason is None and not any(value is not None for value in delta.values())
        if says_nothing and before:
            return None
        return {**choice, "delta": delta, "finish_reason": reason}


def raw_response(
    response: dict[str, Any], declared: Declared, choice: Choice, new_id: Callable[[], str]
) -> tuple[dict[str, Any], list[RawAnswer]]:
    """A whole, unstreamed answer, and what became of each of its choices."""
    choices, answers = [], []
    for given in response.get("choices", ()):
        answer = RawAnswer(declared, choice, new_id)
        message = dict(given.get("message") or {})
        content, calls = answer.feed(message.get("content") or "")
        rest, more, reason = answer.finish(given.get("finish_reason") or "stop")
        calls = [{key: value for key, value in call.items() if key != "index"} for call in [*calls, *more]]
        if content + rest or message.get("content") is not None:
            message["content"] = (content + rest) or (None if calls else message.get("content"))
        if calls:
            message["tool_calls"] = calls
        choices.append({**given, "message": message, "finish_reason": reason})
        answers.append(answer)
    return {**response, "choices": choices}, answers
