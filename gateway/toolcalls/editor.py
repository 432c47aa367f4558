"""The stream editor of a request whose tool calls are ours: each chunk is parsed, turned and judged on its way.

Nothing is held back but what may still become a marker and calls that are not complete. A chunk in which nothing changes
leaves as the bytes it came in.
"""

import re
from typing import Any

import msgspec

from gateway.relay.chunk import NO_CHUNK, is_chunk
from gateway.relay.sse import DONE, data_of, event_of
from gateway.relay.stream import StreamEditor, StreamEnd, UpstreamErrorEvent
from gateway.toolcalls.books import LOST, Books
from prime_inference.toolcalls.raw import RawStream

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

BAD_GATEWAY = 502
_OF_INTEREST = re.compile(rb'"tool_calls"|"finish_reason"\s*:\s*"')
"""What an event must hold to be judged where the frontend parses. A quote inside a JSON string is escaped."""


class ToolStreamEditor(StreamEditor):
    """`raw` is None where the frontend parses: the chunks leave as they are, and are only judged. `books` is None where the
    request has no tools: there is only thinking to be told from the answer."""

    def __init__(self, *, forward_usage: bool, raw: RawStream | None, books: Books | None) -> None:
        super().__init__(forward_usage=forward_usage)
        self._raw = raw
        self._books = books
        self._owes_a_call = False

    def feed(self, event: bytes) -> bytes:
        chunk = None if self.closed else self._chunk_in(event)
        if chunk is None:
            return super().feed(event)
        if not is_chunk(chunk):
            return self.fail(UpstreamErrorEvent(BAD_GATEWAY, NO_CHUNK))
        if any(choice.get("finish_reason") == "error" for choice in chunk["choices"]):
            return super().feed(event)
        sent = chunk if self._raw is None else self._raw.feed(chunk)
        if sent is None:
            return b""
        if self._books is not None:
            self._books.saw(sent)
            if any(choice.get("finish_reason") for choice in sent["choices"]):
                owed = self._books.close(self._lost_calls())
                self._owes_a_call = owed and self._raw is not None
        if self._owes_a_call:
            sent = {**sent, "choices": [{**choice, "finish_reason": None} for choice in sent["choices"]]}
        return super().feed(event if sent == chunk else event_of(_encode(sent)))

    def end(self) -> bytes:
        if self._owes_a_call and not self.closed:
            # Only now: the usage comes after the finish reason.
            return self.fail(UpstreamErrorEvent(BAD_GATEWAY, LOST), StreamEnd.MODEL_ERROR)
        return super().end()

    def fail(self, error: UpstreamErrorEvent, ending: StreamEnd = StreamEnd.UPSTREAM_ERROR) -> bytes:
        if self._books is not None and self.began:
            self._books.close()
        return super().fail(error, ending)

    def _chunk_in(self, event: bytes) -> dict[str, Any] | None:
        """The chunk of the model's answer that this event holds; None for everything else, and for an error event."""
        data = data_of(event)
        if data is None or data == DONE:
            return None
        if self._raw is None and not _OF_INTEREST.search(data):
            return None
        try:
            chunk = _decode(data)
        except msgspec.DecodeError:
            return None
        if not isinstance(chunk, dict) or chunk.get("error") or not chunk.get("choices"):
            return None
        return chunk

    def _lost_calls(self) -> int:
        return 0 if self._raw is None else sum(len(answer.dropped) for answer in self._raw.answers.values())
