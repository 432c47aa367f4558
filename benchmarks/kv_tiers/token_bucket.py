"""A Valkey behind a token bucket: a TCP proxy whose answers leave at a stated rate."""

import contextlib
import socket
import threading
import time

PIECE_BYTES = 16 * 1024
"""Answers are let through in pieces of this size, so that the rate holds within one value too."""


DEPTH_S = 0.01
"""What an idle bucket has saved up, in seconds of its rate: covers threads that are woken late on a busy machine."""


class Bucket:
    """`rate` bytes a second, shared by everyone who takes; it may be set anew at any time."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._lock = threading.Lock()
        self._free_at = time.monotonic()

    def take(self, count: int) -> None:
        with self._lock:
            begin = max(self._free_at, time.monotonic() - DEPTH_S)
            self._free_at = begin + count / self.rate
            wait_s = self._free_at - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)


class ThrottledStore:
    """Listens on `port` for the Valkey at `target`. `moved` counts the bytes of its answers. `rate` in bytes a second, or the
    bucket that it shares with other stores, as behind one link."""

    def __init__(self, target: int, rate: float | Bucket) -> None:
        self._target = target
        self._bucket = rate if isinstance(rate, Bucket) else Bucket(rate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.port = int(self._listener.getsockname()[1])
        self.moved = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):  # closed by its other end already
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            for each in (client, server):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets += [client, server]
            threading.Thread(target=self._relay, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._relay, args=(server, client, True), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, throttled: bool) -> None:
        try:
            while piece := source.recv(PIECE_BYTES):
                if throttled:
                    self._bucket.take(len(piece))
                    self.moved += len(piece)
                sink.sendall(piece)
        except OSError:
            return
