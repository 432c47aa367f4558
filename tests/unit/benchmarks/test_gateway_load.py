"""The load generator and the upstream, as processes: what they write and count."""

import json
import shutil
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks.gateway.build import build
from benchmarks.gateway.histogram import from_pairs, percentile_ms
from prime_inference.local.ports import free_ports

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

PATH = "/v1/chat/completions"


@pytest.fixture(scope="module")
def upstream() -> Iterator[int]:
    port = free_ports(1)[0]
    process = subprocess.Popen([str(build("upstream")), str(port)])
    try:
        until = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionError:
                assert time.monotonic() < until
                time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(10)


def load(mode: str, port: int, connections: int, *more: float) -> dict[str, Any]:
    command = [str(build("load")), mode, f"127.0.0.1:{port}", PATH, "sk-test", str(connections), *map(str, more)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def ask(port: int, body: dict[str, Any]) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=10)
    data = json.dumps(body).encode()
    connection.sendall(f"POST {PATH} HTTP/1.1\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def test_the_upstream_writes_each_event_by_itself_when_it_is_due(upstream: int) -> None:
    messages = [{"role": "user", "content": "bench:events=4,gap_us=300000;"}]
    wanted = {"stream": True, "messages": messages, "stream_options": {"include_usage": True}}
    with ask(upstream, wanted) as connection:
        began, text, sizes, times = time.monotonic(), b"", [], []
        while not text.endswith(b"0\r\n\r\n"):
            text += (data := connection.recv(65536))
            sizes.append(data.count(b"@T"))
            times.append(time.monotonic() - began)
    assert sum(sizes) == 4
    assert max(sizes) == 1
    assert times[-1] >= 0.89
    assert b'"finish_reason":"stop"' in text
    assert b'"completion_tokens":4' in text
    assert b"data: [DONE]" in text


def test_a_whole_answer_has_usage_and_the_extension_only_when_asked(upstream: int) -> None:
    for more in ({}, {"nvext": {"extra_fields": ["timing"]}}):
        with ask(upstream, {"messages": [], **more}) as connection:
            text = b""
            while not text.endswith(b"}"):
                text += connection.recv(65536)
        body = json.loads(text.split(b"\r\n\r\n", 1)[1])
        assert body["usage"]["prompt_tokens"] == 128
        assert ("nvext" in body) == bool(more)


def test_back_to_back_load_counts_whole_answers(upstream: int) -> None:
    told = load("closed", upstream, 4, 0.1, 0.3)
    assert told["ok"] > 20
    assert told["failed"] == 0
    assert from_pairs(told["latency"]).total() == told["ok"]


@pytest.mark.parametrize("spread", [0, 1])
def test_streams_are_counted_by_their_events(upstream: int, spread: int) -> None:
    told = load("streams", upstream, 20, 0.5, 1.0, 400, 20, spread)
    assert 200 <= told["events"] <= 500
    assert told["failed"] == 0
    assert from_pairs(told["delay"]).total() == told["events"]
    assert percentile_ms(from_pairs(told["gap"]), 0.5) == pytest.approx(50, rel=0.5)


class Slow(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        body = b'{"usage":{"completion_tokens":1}}'
        while True:
            length = 0
            while (line := self.rfile.readline().strip()) != b"":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            if not length:
                return
            self.rfile.read(length)
            time.sleep(0.05)
            self.wfile.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


@contextmanager
def slow_server() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Slow) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_a_request_that_waits_for_a_connection_has_waited() -> None:
    with slow_server() as port:
        told = load("open", port, 1, 0.0, 1.0, 40)
    # Twenty a second are answered of forty that come: the last have waited for half of all.
    assert told["sent"] + told["unanswered"] >= 38
    assert percentile_ms(from_pairs(told["latency"]), 0.99) > 300
