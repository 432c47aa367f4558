"""RESP2, the part that is needed: commands out, the first line of a reply in. Pure.

command   *<parts>\\r\\n then each part as $<length>\\r\\n<bytes>\\r\\n
replies   +OK   -ERR ...   :<number>   $<length> (bytes follow)   $-1 (no such key)
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

TERMINATOR = b"\r\n"

LARGEST_VALUE_BYTES = 512 * 1024 * 1024
"""Valkey's own limit on a value. A longer announced length is a broken peer, not a value to wait for."""


class ReplyKind(StrEnum):
    STATUS = "status"
    ERROR = "error"
    INTEGER = "integer"
    VALUE = "value"
    NO_VALUE = "no_value"


@dataclass(frozen=True, slots=True)
class ReplyHeader:
    """`number` is the integer of an INTEGER, the byte length of a VALUE, else 0; `text` the line of a STATUS, ERROR."""

    kind: ReplyKind
    number: int = 0
    text: bytes = b""


class MalformedReply(ValueError):
    """Bytes that are no RESP2 reply, or not one that the command can have."""


def command(*parts: bytes) -> bytes:
    """A whole command; for a store's value use `store_head`, which leaves the value where it is."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def key_command(name: bytes, key: bytes) -> bytes:
    """`command` of a name and one key, made once a key and so in one step."""
    return b"*2\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(name), name, len(key), key)


def store_head(key: bytes, value_bytes: int) -> bytes:
    """SET up to its value; the value and TERMINATOR follow from the caller's own memory."""
    return b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, value_bytes)


@lru_cache(maxsize=64)  # a batch has the same few first lines over and over
def parse_header(line: bytes) -> ReplyHeader:
    """The reply that `line` (without its terminator) opens. Raises MalformedReply."""
    sign, rest = line[:1], line[1:]
    if sign == b"$":
        length = _number(line, rest)
        if length == -1:
            return _NO_VALUE
        if not 0 <= length <= LARGEST_VALUE_BYTES:
            raise MalformedReply(f"value of {length} bytes")
        return ReplyHeader(ReplyKind.VALUE, number=length)
    if sign == b":":
        return ReplyHeader(ReplyKind.INTEGER, number=_number(line, rest))
    if sign == b"+":
        return ReplyHeader(ReplyKind.STATUS, text=rest)
    if sign == b"-":
        return ReplyHeader(ReplyKind.ERROR, text=rest)
    raise MalformedReply(f"reply opens with {line[:32]!r}")


_NO_VALUE = ReplyHeader(ReplyKind.NO_VALUE)


def _number(line: bytes, digits: bytes) -> int:
    # int() alone would take b" 1", b"1_0" and b"+1".
    if not digits.removeprefix(b"-").isdigit():
        raise MalformedReply(f"no number in {line[:32]!r}")
    return int(digits)
