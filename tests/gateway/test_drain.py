"""A gateway process on SIGTERM, judged from outside."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import yaml

from prime_inference.keys import hash_of
from prime_inference.local.ports import free_ports

EVENT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
LAST = b'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
HEADERS = {"authorization": "Bearer sk-test"}
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


class Slow(BaseHTTPRequestHandler):
    """One event at once, the rest after the server's `pause_s`."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        try:
            self.wfile.write(EVENT)
            self.wfile.flush()
            time.sleep(self.server.pause_s)  # type: ignore[attr-defined]
            self.wfile.write(LAST)
        except OSError:
            return  # the gateway has left

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def gateway_process(tmp_path: Path, pause_s: float, drain_s: float) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    upstream.pause_s = pause_s  # type: ignore[attr-defined]
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    fleet = {
        "models": [{"name": "m", "deployments": ["d"]}],
        "deployments": [{"name": "d", "frontends": [f"http://127.0.0.1:{upstream.server_port}"]}],
    }
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(fleet))
    keys = {"keys": [{"name": "k", "tenant": "t", "sha256": hash_of("sk-test")}]}
    (tmp_path / "keys.yaml").write_text(yaml.safe_dump(keys))
    port, internal = free_ports(2)
    settings = {
        "PORT": port, "INTERNAL_PORT": internal, "FLEET_FILE": tmp_path / "fleet.yaml",
        "KEYS_FILE": tmp_path / "keys.yaml", "SECRET": "s", "DRAIN_SECONDS": drain_s,
    }  # fmt: skip
    environment = {**os.environ, **{f"PRIME_GATEWAY_{name}": str(value) for name, value in settings.items()}}
    process = subprocess.Popen([sys.executable, "-m", "prime_inference", "gateway"], env=environment)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                httpx.get(f"{url}/readyz")
                break
            except httpx.TransportError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield process, url
    finally:
        process.kill()
        process.wait()
        upstream.shutdown()
        upstream.server_close()


def test_a_running_stream_finishes_while_new_requests_are_asked_to_go_elsewhere(tmp_path: Path) -> None:
    with gateway_process(tmp_path, pause_s=2.0, drain_s=20) as (process, url):
        with httpx.stream("POST", f"{url}/api/v1/chat/completions", json=BODY, headers=HEADERS, timeout=30) as response:
            parts = response.iter_raw()
            assert next(parts) == EVENT
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert httpx.get(f"{url}/readyz").status_code == 503
            refused = httpx.post(f"{url}/api/v1/chat/completions", json=BODY, headers=HEADERS)
            assert refused.status_code == 503
            assert refused.headers["x-should-retry"] == "true"
            assert b"".join(parts) == LAST
        assert process.wait(10) == 0


def test_a_stream_that_outlasts_the_deadline_ends_with_an_error_event(tmp_path: Path) -> None:
    with gateway_process(tmp_path, pause_s=30.0, drain_s=0.5) as (process, url):
        with httpx.stream("POST", f"{url}/api/v1/chat/completions", json=BODY, headers=HEADERS, timeout=30) as response:
            parts = response.iter_raw()
            assert next(parts) == EVENT
            process.send_signal(signal.SIGTERM)
            *_, error, done, _ = b"".join(parts).split(b"\n\n")
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "503"
        assert done == b"data: [DONE]"
        assert process.wait(10) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_replica_ends_soon(tmp_path: Path, number: signal.Signals) -> None:
    with gateway_process(tmp_path, pause_s=0, drain_s=20) as (process, _):
        process.send_signal(number)
        assert process.wait(10) == 0
