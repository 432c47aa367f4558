"""The stream editor of a request in another dialect: the chat editor's own bytes, chunk by chunk, in the dialect's events.

Everything that is decided of a stream (failover, errors, usage, tool calls) is decided by the chat editor within.
"""

from typing import Any

import msgspec

from gateway.dialects.writer import Unspeakable, Writer
from gateway.metering.usage import Usage
from gateway.relay.chunk import NO_CHUNK, is_chunk
from gateway.relay.sse import DONE, EventSplitter, data_of
from gateway.relay.stream import Editor, StreamEnd, UpstreamErrorEvent

BAD_GATEWAY = 502
_decode = msgspec.json.Decoder().decode
_UNBOUNDED = 2**62
"""What is split here has passed the relay's own splitter."""


class DialectEditor:
    def __init__(self, chat: Editor, writer: Writer) -> None:
        self._chat = chat
        self._writer = writer
        self._splitter = EventSplitter(_UNBOUNDED)
        self._unspeakable: UpstreamErrorEvent | None = None
        self.began = False
        self.ending: StreamEnd | None = None
        self.usage: Usage | None = None
        self.timing: dict[str, Any] | None = None
        self.error: UpstreamErrorEvent | None = None

    @property
    def closed(self) -> bool:
        return self._chat.closed or self._unspeakable is not None

    def feed(self, event: bytes) -> bytes:
        return b"" if self.closed else self._translated(self._chat.feed(event))

    def end(self) -> bytes:
        return b"" if self.closed else self._translated(self._chat.end())

    def fail(self, error: UpstreamErrorEvent, ending: StreamEnd = StreamEnd.UPSTREAM_ERROR) -> bytes:
        return b"" if self.closed else self._translated(self._chat.fail(error, ending))

    def _translated(self, sent: bytes) -> bytes:
        translated = b"".join(map(self._one, self._splitter.feed(sent))) if sent else b""
        chat, broken = self._chat, self._unspeakable
        self.began, self.usage, self.timing = chat.began, chat.usage, chat.timing
        self.ending = chat.ending if broken is None else StreamEnd.MODEL_ERROR
        self.error = chat.error if broken is None else broken
        return translated

    def _one(self, event: bytes) -> bytes:
        data = data_of(event)
        if self._unspeakable is not None:
            return b""
        if data is None:
            return event
        try:
            if data == DONE:
                return self._writer.done() if self._chat.ending is StreamEnd.COMPLETE else b""
            chunk = _decode(data)
            if self._chat.error is not None and chunk.get("error"):
                return self._writer.error(self._chat.error)
            if not is_chunk(chunk):
                raise Unspeakable(NO_CHUNK)
            return self._writer.chunk(chunk)
        except Unspeakable as problem:
            self._unspeakable = UpstreamErrorEvent(BAD_GATEWAY, str(problem))
            return self._writer.error(self._unspeakable)
