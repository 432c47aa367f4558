"""One TCP connection to one shard (socket shell). Every call ends by its deadline, also against a peer that trickles.

The socket is in blocking mode with the kernel's own timeouts (SO_RCVTIMEO, SO_SNDTIMEO), because a read of a whole
value is then one system call: Python's timeouts would make it one poll and one read, and two turns of the interpreter
lock, for every few hundred kilobytes that arrive.
"""

import socket
import struct
import time
from collections.abc import Callable

from prime_inference.kv.l2.settings import ShardAddress
from prime_inference.kv.l2.wire import TERMINATOR, MalformedReply, ReplyHeader, ReplyKind, command, parse_header

CONNECT_TIMEOUT_S = 0.5
"""A shard on the same network answers in a millisecond; one that drops packets must not eat the whole deadline."""

READ_AHEAD_BYTES = 4 * 1024
"""First lines come through a buffer of this size: hundreds of lookups' replies, and little of a value to copy on."""

WAIT_FOR_ALL_BYTES = 512 * 1024
"""A rest longer than this is awaited whole; a shorter one is read together with the line that follows it."""

TIMEOUT_REUSE_S = 0.01
"""How long a kernel timeout stays set for the same deadline before it is set anew: one system call in two, for a
deadline that is late by this at most."""

SHORTEST_TIMEOUT_S = 0.001
"""The kernel takes a timeout of 0 for none at all."""


class ConnectionLost(ConnectionError):
    """The peer closed or reset the connection, or it could not be used any more."""


class Unreachable(ConnectionError):
    """No connection could be made."""


class DeadlinePassed(TimeoutError):
    """The deadline came first. What was in flight is unknown, so the connection must be dropped."""


class Connection:
    """Owned by one thread. `open` connects anew when needed; after any raised error the owner calls `drop`."""

    def __init__(
        self, address: ShardAddress, username: str = "", password: str = "", now: Callable[[], float] = time.monotonic
    ) -> None:
        self.address = address
        self._username = username
        self._password = password
        self._now = now
        self._socket: socket.socket | None = None
        self._ahead = bytearray(READ_AHEAD_BYTES)
        self._view = memoryview(self._ahead)
        self._start = self._end = 0
        self._limits: dict[int, tuple[float, float]] = {}  # socket option -> (deadline, when it was set)

    def open(self, deadline: float) -> None:
        """Connect and authenticate if there is no connection, else see that it is quiet. Raises Unreachable, DeadlinePassed,
        ConnectionLost, MalformedReply."""
        if self._socket is not None:
            self._check_quiet(self._socket)
            return
        remaining_s = deadline - self._now()
        if remaining_s <= 0.0:
            raise DeadlinePassed(f"{self.address}")
        timeout_s = min(CONNECT_TIMEOUT_S, remaining_s)
        try:
            opened = socket.create_connection((self.address.host, self.address.port), timeout=timeout_s)
        except OSError as error:
            raise Unreachable(f"{self.address}: {error}") from error
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.settimeout(None)
        self._socket = opened
        self._start = self._end = 0
        self._limits.clear()
        if self._password:
            parts = (b"AUTH", self._username.encode(), self._password.encode())
            self.send([command(*(part for part in parts if part))], deadline)
            if self.read_header(deadline).kind is not ReplyKind.STATUS:
                raise ConnectionLost(f"{self.address} refused the credentials")

    def _check_quiet(self, opened: socket.socket) -> None:
        """Between exchanges a peer has nothing to say: what lies there would be taken for the next key's reply."""
        try:
            unasked = self._start != self._end or opened.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            raise ConnectionLost(f"{self.address}: {error}") from error
        if unasked:
            raise MalformedReply(f"{self.address}: bytes nobody asked for")
        raise ConnectionLost(f"{self.address} closed the connection")

    def fileno(self) -> int:
        """The open socket, for a reader that is not this class. Raises ConnectionLost where none is open, MalformedReply
        where the peer said more than it was asked."""
        if self._start != self._end:
            raise MalformedReply(f"{self.address}: bytes nobody asked for")
        return self._live().fileno()

    def drop(self) -> None:
        """Close; the next `open` connects anew. Never raises."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def interrupt(self) -> None:
        """End the owner's present call from another thread: it raises ConnectionLost."""
        current = self._socket
        if current is not None:
            try:
                current.shutdown(socket.SHUT_RDWR)
            except OSError:  # already closed by its owner or by the peer, which is what was wanted
                return

    def send(self, parts: list[bytes | memoryview], deadline: float) -> None:
        """Send all parts in order without joining them. Raises ConnectionLost, DeadlinePassed."""
        rest = list(parts)
        while rest:
            self._limit(socket.SO_SNDTIMEO, deadline)
            try:
                sent = self._live().sendmsg(rest)
            except BlockingIOError as error:
                raise DeadlinePassed(f"{self.address}: send") from error
            except OSError as error:
                raise ConnectionLost(f"{self.address}: {error}") from error
            while rest and sent >= len(rest[0]):
                sent -= len(rest[0])
                rest.pop(0)
            if rest and sent:
                rest[0] = memoryview(rest[0])[sent:]

    def read_header(self, deadline: float) -> ReplyHeader:
        """The next reply's first line. Raises MalformedReply, ConnectionLost, DeadlinePassed."""
        while (at := self._ahead.find(TERMINATOR, self._start, self._end)) < 0:
            if self._end - self._start == READ_AHEAD_BYTES:
                raise MalformedReply("a first line without end")
            self._fill(deadline)
        line = bytes(self._view[self._start : at])
        self._start = at + len(TERMINATOR)
        return parse_header(line)

    def read_value(self, into: memoryview, deadline: float) -> None:
        """Fill `into` and read the terminator after it. Raises as `read_header`; then `into` holds no value."""
        size = len(into)
        have = min(self._end - self._start, size)
        into[:have] = self._view[self._start : self._start + have]
        self._start += have
        while size - have > WAIT_FOR_ALL_BYTES:
            have += self._receive([into[have:]], deadline, socket.MSG_WAITALL)
        while have < size:
            # Nothing is read ahead here. One call for the rest of this value and the first line of the next reply.
            have += self._receive([into[have:], self._view], deadline)
            self._start, self._end = 0, max(0, have - size)
        while self._end - self._start < len(TERMINATOR):
            self._fill(deadline)
        if self._view[self._start : self._start + len(TERMINATOR)] != TERMINATOR:
            raise MalformedReply("a value that does not end where it said")
        self._start += len(TERMINATOR)

    def discard_value(self, value_bytes: int, deadline: float) -> None:
        """Read past a value that nobody can use. Raises as `read_header`."""
        left = value_bytes + len(TERMINATOR)
        while left:
            if self._start == self._end:
                self._fill(deadline)
            step = min(left, self._end - self._start)
            self._start += step
            left -= step

    def _fill(self, deadline: float) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._end == READ_AHEAD_BYTES:
            kept = self._end - self._start
            self._ahead[:kept] = self._ahead[self._start : self._end]
            self._start, self._end = 0, kept
        self._end += self._receive([self._view[self._end :]], deadline)

    def _receive(self, into: list[memoryview], deadline: float, flags: int = 0) -> int:
        self._limit(socket.SO_RCVTIMEO, deadline)
        try:
            received = self._live().recvmsg_into(into, 0, flags)[0]
        except BlockingIOError as error:
            raise DeadlinePassed(f"{self.address}: receive") from error
        except OSError as error:
            raise ConnectionLost(f"{self.address}: {error}") from error
        if received == 0:
            raise ConnectionLost(f"{self.address} closed the connection")
        return received

    def _live(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionLost(f"{self.address}: not connected")
        return self._socket

    def _limit(self, option: int, deadline: float) -> None:
        now = self._now()
        if deadline <= now:
            raise DeadlinePassed(f"{self.address}")
        for_deadline, set_at = self._limits.get(option, (0.0, 0.0))
        if for_deadline == deadline and now - set_at < TIMEOUT_REUSE_S:
            return
        seconds, fraction = divmod(max(deadline - now, SHORTEST_TIMEOUT_S), 1.0)
        self._live().setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", int(seconds), int(fraction * 1e6)))
        self._limits[option] = (deadline, now)
