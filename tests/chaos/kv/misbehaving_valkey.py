"""A RESP server on the loopback that answers well, except for the keys it is told to misbehave on."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Reply = Callable[[socket.socket, bytes | None], bool]
"""Answer a GET for this stored value on this socket; False to close the connection afterwards."""


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def says(raw: bytes, *, close: bool = False, after_s: float = 0.0) -> Reply:
    def reply(peer: socket.socket, _value: bytes | None) -> bool:
        time.sleep(after_s)
        peer.sendall(raw)
        return not close

    return reply


def half_value_then_close(peer: socket.socket, value: bytes | None) -> bool:
    assert value is not None
    peer.sendall(bulk(value)[: len(value) // 2])
    return False


def trickle(peer: socket.socket, value: bytes | None) -> bool:
    """One byte every 20 ms: each single wait is short, the whole never ends."""
    assert value is not None
    for byte in bulk(value):
        peer.sendall(bytes([byte]))
        time.sleep(0.02)
    return True


@dataclass
class MisbehavingValkey:
    """`on_get` overrides replies by key and `on_any` for every command; `connections` counts accepted ones."""

    port: int
    values: dict[bytes, bytes] = field(default_factory=dict)
    on_get: dict[bytes, Reply] = field(default_factory=dict)
    on_any: Reply | None = None
    connections: int = 0
    listener: socket.socket | None = None
    peers: list[socket.socket] = field(default_factory=list)

    def start(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", self.port), reuse_port=False)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def stop(self) -> None:
        """Close the listener and every connection, as a killed process would."""
        assert self.listener is not None
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for peer in self.peers:
            try:
                peer.shutdown(socket.SHUT_RDWR)
            except OSError:  # the client closed it first
                continue
        self.peers.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:  # stopped
                return
            self.connections += 1
            self.peers.append(peer)
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer, peer.makefile("rb") as stream:
            try:
                while (parts := read_command(stream)) and self._answer(peer, parts):
                    pass
            except OSError:  # the client gave the connection up, which is its right
                return

    def _answer(self, peer: socket.socket, parts: list[bytes]) -> bool:
        name, key = parts[0], parts[1]
        if self.on_any is not None:
            return self.on_any(peer, self.values.get(key))
        if name == b"SET":
            self.values[key] = parts[2]
            peer.sendall(b"+OK\r\n")
        elif name == b"EXISTS":
            peer.sendall(b":%d\r\n" % (key in self.values))
        elif name == b"DEL":
            peer.sendall(b":%d\r\n" % (self.values.pop(key, None) is not None))
        elif key in self.on_get:
            return self.on_get[key](peer, self.values.get(key))
        else:
            value = self.values.get(key)
            peer.sendall(b"$-1\r\n" if value is None else bulk(value))
        return True


def read_command(stream) -> list[bytes]:  # type: ignore[no-untyped-def]
    """One command's parts; empty at the end of the stream, also in mid-command."""
    first = stream.readline()
    if not first.endswith(b"\r\n"):
        return []
    parts = []
    for _ in range(int(first[1:])):
        length = stream.readline()
        if not length.endswith(b"\r\n"):
            return []
        part = stream.read(int(length[1:]) + 2)
        if len(part) < int(length[1:]) + 2:
            return []
        parts.append(part[:-2])
    return parts


@contextmanager
def misbehaving_valkey() -> Iterator[MisbehavingValkey]:
    server = MisbehavingValkey(port=0)
    server.start()
    try:
        yield server
    finally:
        if server.listener is not None and server.listener.fileno() >= 0:
            server.stop()
