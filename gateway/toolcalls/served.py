"""What becomes of one request and of its answers."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.api.request import GenerationRequest
from gateway.api.shapes import editor_for
from gateway.dialects.editor import DialectEditor
from gateway.dialects.writer import Unspeakable, Writer, whole_answer
from gateway.errors import UpstreamFailed
from gateway.relay.stream import Editor
from gateway.toolcalls.books import LOST, Books
from gateway.toolcalls.editor import ToolStreamEditor
from gateway.toolcalls.metrics import ToolMetrics
from prime_inference.toolcalls.choice import Choice
from prime_inference.toolcalls.declared import Declared
from prime_inference.toolcalls.raw import RawStream, raw_response

CALL_ID_BYTES = 12


def new_call_id() -> str:
    return f"call_{secrets.token_hex(CALL_ID_BYTES)}"


@dataclass(frozen=True)
class Served:
    """A request that nothing is to be done about: its answers pass."""

    request: GenerationRequest
    """As it leaves for the frontend."""

    def editor(self) -> Editor:
        """For one attempt."""
        return editor_for(self.request)()

    def whole(self, body: bytes) -> bytes:
        """The unstreamed answer as the client gets it. Raises UpstreamFailed."""
        return body


@dataclass(frozen=True)
class ServedWithTools(Served):
    metrics: ToolMetrics
    model: str
    declared: Declared
    choice: Choice
    parsed_here: bool
    """The frontend leaves the text raw, and this gateway parses it."""
    thinking: bool
    """The prompt left the thinking open."""

    def editor(self) -> Editor:
        raw = RawStream(self.declared, self.choice, new_call_id, self.thinking) if self.parsed_here else None
        return ToolStreamEditor(forward_usage=self.request.wants_usage, raw=raw, books=self._books())

    def whole(self, body: bytes) -> bytes:
        answer: dict[str, Any] = msgspec.json.decode(body)
        lost = 0
        sent = answer
        if self.parsed_here:
            sent, parsed = raw_response(answer, self.declared, self.choice, new_call_id, self.thinking)
            lost = sum(len(choice.dropped) for choice in parsed)
        books = self._books()
        if books is not None:
            books.saw(sent)
            if books.close(lost) and self.parsed_here:
                raise UpstreamFailed(f"The answer is of no use: {LOST}.", code="tool_call_lost")
        return body if sent == answer else msgspec.json.encode(sent)

    def _books(self) -> Books | None:
        return Books(self.metrics, self.model, self.declared, self.choice) if self.declared.tools else None


@dataclass(frozen=True)
class ServedInDialect(Served):
    """A Responses or Messages request that is served as a chat completion."""

    chat: Served
    new_writer: Callable[[], Writer]

    def editor(self) -> Editor:
        return DialectEditor(self.chat.editor(), self.new_writer())

    def whole(self, body: bytes) -> bytes:
        try:
            return whole_answer(self.chat.whole(body), self.new_writer())
        except Unspeakable as problem:
            raise UpstreamFailed(f"The answer is of no use: {problem}.", code="tool_call_lost") from problem
