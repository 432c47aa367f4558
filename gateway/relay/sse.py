"""Server-sent events on bytes: where one event ends and the next begins, and what its data is.

An event ends with an empty line; lines end with LF, CR or CRLF, also mixed, and any of these may be cut by the edge of a
read. Nothing is decoded, so a multi-byte character that two reads share is never touched. The bytes that come out are the
bytes that went in.
"""

import re

_EVENT_END = re.compile(rb"(?:\r\n|\r(?!\n)|\n)(?:\r\n|\r(?!\n)|\n)")
_LINE_END = re.compile(rb"\r\n|\r|\n")

DONE = b"[DONE]"


class EventTooLarge(Exception):
    """One event grew past the limit before it ended."""


class EventSplitter:
    """Cuts a byte stream into complete events, each with its closing empty line.

    `max_event_bytes` bounds what one event may hold. Events before one that is too large are still handed out; the call
    after that raises.
    """

    def __init__(self, max_event_bytes: int) -> None:
        self._max_event_bytes = max_event_bytes
        self._pending = bytearray()
        self._searched = 0
        self._too_large = False

    def feed(self, data: bytes) -> list[bytes]:
        """The events that `data` completes, in order. Raises EventTooLarge."""
        # The common case: the read holds whole events of LF-only lines and nothing is left over from before.
        if not self._pending and len(data) <= self._max_event_bytes and data.endswith(b"\n\n") and b"\r" not in data:
            if data.count(b"\n") == 2:
                return [data]
            return [part + b"\n\n" for part in data[:-2].split(b"\n\n")]
        if self._too_large:
            raise EventTooLarge(f"an event of more than {self._max_event_bytes} bytes")
        self._pending += data
        events = self._take()
        fitting = next((n for n, event in enumerate(events) if len(event) > self._max_event_bytes), len(events))
        self._too_large = fitting < len(events) or len(self._pending) > self._max_event_bytes
        if self._too_large and fitting == 0:
            raise EventTooLarge(f"an event of more than {self._max_event_bytes} bytes")
        return events[:fitting]

    def rest(self) -> bytes:
        """What is left when the stream has ended: an unfinished event, or nothing. Raises EventTooLarge."""
        if self._too_large:
            raise EventTooLarge(f"an event of more than {self._max_event_bytes} bytes")
        rest = bytes(self._pending)
        self._pending.clear()
        self._searched = 0
        return rest

    def _take(self) -> list[bytes]:
        pending = self._pending
        # A CR at the very end may be the first half of CRLF: judged when the next byte is here.
        end = len(pending) - 1 if pending.endswith(b"\r") else len(pending)
        events: list[bytes] = []
        start = 0
        # An event's end spans four bytes at most: look again from three before where the last search stopped.
        position = max(0, self._searched - 3)
        while match := _EVENT_END.search(pending, position, end):
            events.append(bytes(pending[start : match.end()]))
            start = position = match.end()
        del pending[:start]
        self._searched = end - start
        return events


def data_of(event: bytes) -> bytes | None:
    """The event's data, lines joined by LF; None for a comment, or an event without data."""
    if event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2 and b"\r" not in event:
        return event[6:-2]
    lines: list[bytes] = []
    for line in _LINE_END.split(event):
        name, colon, value = line.partition(b":")
        if name == b"data":
            lines.append(value[1:] if colon and value.startswith(b" ") else value)
    return b"\n".join(lines) if lines else None


def field_of(event: bytes, field: bytes) -> bytes | None:
    """The last value of a field other than data (`event`, `id`, `retry`), or None. A comment is the field with no name."""
    found: bytes | None = None
    for line in _LINE_END.split(event):
        name, colon, value = line.partition(b":")
        if line and name == field:
            found = value[1:] if colon and value.startswith(b" ") else value
    return found


def is_comment(event: bytes) -> bool:
    """Nothing but comment lines."""
    return all(not line or line.startswith(b":") for line in _LINE_END.split(event))


def event_of(data: bytes) -> bytes:
    """One event with this data, which must hold no line end."""
    return b"data: " + data + b"\n\n"
