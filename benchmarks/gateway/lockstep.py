"""An upstream and its clients in one process: of each stream the next event leaves when the last one has arrived.

So every event is read, relayed and written by itself, however little of its core a target gets: paced by a clock, a target that
others hold up finds several events in one read, and each then looks cheaper than it is.
"""

import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.gateway.targets import KEY, MODEL, Target

STREAMS = 24
"""In flight at once: so many may be ready in one turn of a target's loop."""

PATIENCE_S = 20.0
LARGEST_READ = 1 << 16
REQUEST = b'{"model":"%b","messages":[{"role":"user","content":"x"}],"max_tokens":256,"stream":true}' % MODEL.encode()
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FIELDS = b'"created":1790000000,"model":"%b","object":"chat.completion.chunk"' % MODEL.encode()
LAST_CHUNK = b"0\r\n\r\n"


def _event(choice: bytes) -> bytes:
    return b'data: {"id":"chatcmpl-00000001","choices":[{"index":0,%b,"logprobs":null}],%b}\n\n' % (choice, FIELDS)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


EVENT = _chunk(_event(b'"delta":{"content":" @T00000000000000001","role":"assistant"},"finish_reason":null'))
END = _chunk(_event(b'"delta":{"content":""},"finish_reason":"stop"') + b"data: [DONE]\n\n") + LAST_CHUNK


class Stream(NamedTuple):
    client: socket.socket
    upstream: socket.socket


class Lockstep:
    """Listens; `port` is what the target has for its frontend."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._idle: list[socket.socket] = []
        self.port: int = listener.getsockname()[1]

    def run(self, target: Target, events: int, clock: Callable[[], object]) -> int:
        """How many events went through it. STREAMS are opened before and ended after; `clock` is called when the events
        begin and when they have ended. Raises TimeoutError."""
        streams = {stream.client.fileno(): stream for stream in self._opened(target)}
        done = 0
        clock()
        with select.epoll() as ready:
            for number, stream in streams.items():
                ready.register(number, select.EPOLLIN)
                stream.upstream.sendall(EVENT)
            while done < events:
                found = ready.poll(PATIENCE_S)
                if not found:
                    raise TimeoutError(f"{target.name} holds back an event")
                for number, _ in found:
                    stream = streams[number]
                    stream.client.recv(LARGEST_READ)
                    stream.upstream.sendall(EVENT)
                    done += 1
        clock()
        for stream in streams.values():
            stream.upstream.sendall(END)
            _read_to(stream.client, LAST_CHUNK)
            stream.client.close()
            self._idle.append(stream.upstream)
        return done

    def _opened(self, target: Target) -> Iterator[Stream]:
        """One after another, so that it is known which stream is whose."""
        host, port = target.address.split(":")
        lines = (
            f"POST {target.path} HTTP/1.1",
            "host: x",
            f"authorization: Bearer {KEY}",
            f"content-length: {len(REQUEST)}",
        )
        asking = "\r\n".join(lines).encode() + b"\r\n\r\n" + REQUEST
        for _ in range(STREAMS):
            client = socket.create_connection((host, int(port)), PATIENCE_S)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.sendall(asking)
            upstream = self._asked()
            upstream.sendall(HEAD + EVENT)
            _read_to(client, b"\n\n\r\n")
            yield Stream(client, upstream)

    def _asked(self) -> socket.socket:
        """The connection on which the next request comes, a new one or one that was used before."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for each in select.select([self._listener, *self._idle], [], [], 1.0)[0]:
                if each is self._listener:
                    upstream, _ = each.accept()
                    upstream.settimeout(PATIENCE_S)
                    upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._idle.append(upstream)
                    continue
                self._idle.remove(each)
                got = each.recv(LARGEST_READ)
                if not got:
                    each.close()
                    continue
                while b'"stream":true' not in got:
                    got += each.recv(LARGEST_READ)
                return each
        raise TimeoutError("no request came")

    def close(self) -> None:
        for each in (self._listener, *self._idle):
            each.close()


def _read_to(client: socket.socket, end: bytes) -> None:
    got = b""
    while not got.endswith(end):
        piece = client.recv(LARGEST_READ)
        if not piece:
            raise ConnectionError("the stream ended early")
        got += piece


@contextmanager
def lockstep() -> Iterator[Lockstep]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=2 * STREAMS)
    upstream = Lockstep(listener)
    try:
        yield upstream
    finally:
        upstream.close()
