"""The turns of a chat request, built from another dialect's parts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.api.request import Endpoint, GenerationRequest
from gateway.errors import InvalidRequest

SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "min_tokens", "ignore_eos", "chat_template_kwargs", "chat_template_args", "user",
)  # fmt: skip
"""Passed on by their own names: the engine's to judge."""

TOOLS = ("tools", "tool_choice", "parallel_tool_calls")


@dataclass(frozen=True)
class Asked:
    """A request of another dialect as a chat request."""

    fields: dict[str, Any]
    left_out: int = 0
    """Tools that only their vendor's servers can run."""


def as_chat(request: GenerationRequest, asked: Asked) -> GenerationRequest:
    """The usage is always wanted: both dialects state it."""
    return GenerationRequest(
        endpoint=Endpoint.CHAT, model=request.model, stream=request.stream, wants_usage=True, fields=asked.fields
    )


def refused(param: str, message: str, code: str = "unsupported_value") -> InvalidRequest:
    return InvalidRequest(message, param=param, code=code)


def object_at(value: Any, param: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refused(param, f"`{param}` must be an object.", "invalid_type")
    return value


def text_at(value: Any, param: str) -> str:
    if not isinstance(value, str):
        raise refused(param, f"`{param}` must be a string.", "invalid_type")
    return value


def list_at(value: Any, param: str) -> list[Any]:
    if not isinstance(value, list):
        raise refused(param, f"`{param}` must be an array.", "invalid_type")
    return value


@dataclass
class Parts:
    """A message's content: texts and images in their order."""

    parts: list[dict[str, Any]] = field(default_factory=list)

    def text(self, text: str) -> None:
        self.parts.append({"type": "text", "text": text})

    def image(self, url: str, detail: Any = None) -> None:
        more = {} if detail is None else {"detail": detail}
        self.parts.append({"type": "image_url", "image_url": {"url": url, **more}})

    @property
    def content(self) -> str | list[dict[str, Any]]:
        """One text where there are only texts, a line each: chat templates differ in what they make of a list."""
        if all(part["type"] == "text" for part in self.parts):
            return "\n".join(part["text"] for part in self.parts)
        return self.parts


@dataclass
class Turns:
    """Chat messages in the making. What the model wrote in one go is one message: thinking, text, calls."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    _thought: list[str] = field(default_factory=list)
    _images: Parts = field(default_factory=Parts)

    def say(self, role: str, content: str | list[dict[str, Any]]) -> None:
        if role == "assistant":
            self._assistant(content)
        else:
            self._end_turn(role)
            self.messages.append({"role": role, "content": content})

    def think(self, text: str) -> None:
        if text:
            self._thought.append(text)

    def call(self, call_id: str, name: str, arguments: str) -> None:
        entry = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        if not self._model_is_speaking() or self._thought:
            self._assistant(None)
        self.messages[-1].setdefault("tool_calls", []).append(entry)

    def result(self, call_id: str, parts: Parts) -> None:
        """What a tool answered. A tool message is text in every template; images follow in the user's name."""
        self._end_turn("tool")
        texts = [part["text"] for part in parts.parts if part["type"] == "text"]
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)})
        self._images.parts += [part for part in parts.parts if part["type"] != "text"]

    def finish(self) -> list[dict[str, Any]]:
        self._end_turn("")
        return self.messages

    def _model_is_speaking(self) -> bool:
        return bool(self.messages) and self.messages[-1]["role"] == "assistant"

    def _assistant(self, content: str | list[dict[str, Any]] | None) -> None:
        self._end_turn("assistant")
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self._thought:
            message["reasoning_content"] = "\n".join(self._thought)
            self._thought = []
        self.messages.append(message)

    def _end_turn(self, next_role: str) -> None:
        if next_role != "assistant":
            self._thought = []  # thinking without an answer belongs to nothing
        if self._images.parts and next_role != "tool":
            images, self._images = self._images, Parts()
            self.messages.append({"role": "user", "content": images.parts})


def sampling(fields: Mapping[str, Any], names: Iterable[str] = SAMPLING) -> dict[str, Any]:
    return {name: fields[name] for name in names if fields.get(name) is not None}


def thinking(fields: dict[str, Any], on: bool) -> None:
    """GLM's templates open the thinking unless told not to. A client that says so itself has the last word."""
    given = fields.get("chat_template_kwargs")
    fields["chat_template_kwargs"] = {"enable_thinking": on, **(given if isinstance(given, dict) else {})}


def json_schema(schema: Any, name: Any = None, strict: Any = None) -> dict[str, Any]:
    wanted = {"name": name or "answer", "schema": schema}
    return {"type": "json_schema", "json_schema": wanted if strict is None else {**wanted, "strict": strict}}


def written(value: Any) -> str:
    return msgspec.json.encode(value).decode()
