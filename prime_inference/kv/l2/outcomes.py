"""What was asked of a shard, and what may become of one key. Both closed: they are metric labels."""

from enum import StrEnum


class Operation(StrEnum):
    LOOKUP = "lookup"
    LOAD = "load"
    STORE = "store"
    DELETE = "delete"


class KeyOutcome(StrEnum):
    OK = "ok"
    """Found, loaded, stored or deleted, as asked."""
    ABSENT = "absent"
    """The shard does not hold the key: an ordinary miss, also when it was evicted between lookup and load."""
    WRONG_LENGTH = "wrong_length"
    """The value is longer or shorter than the buffer: written under another layout. Never copied in part."""
    SERVER_ERROR = "server_error"
    """The shard answered with an error line (loading its data, out of memory, authentication)."""
    MALFORMED = "malformed"
    """The reply is not RESP, or not the kind of reply this command has. The connection is given up."""
    CONNECTION_LOST = "connection_lost"
    """The connection ended in mid-exchange twice, so also on a fresh one."""
    UNREACHABLE = "unreachable"
    """No connection could be made, or the last attempt to make one failed a moment ago."""
    DEADLINE = "deadline"
    """Not done by the deadline, wherever the time went: queue, name lookup, connect, send or receive."""
    CLOSED = "closed"
    """This client was closed first."""


Completion = tuple[int, bool, str, list[bool]]
"""(batch number, went as a whole, error text, per key): LMCache's native-client tuple."""
