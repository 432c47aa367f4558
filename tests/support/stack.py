"""A stack started the way a user starts it: `prime-inference up`, as a process, judged from outside."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from prime_inference.local.ports import free_ports

ROOT = Path(__file__).parents[2]


@dataclass
class Stack:
    process: subprocess.Popen[bytes]
    state: Path
    port: int
    output: Path

    @property
    def running(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((self.state / "running.json").read_text())
        return facts

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api/v1"

    @property
    def key(self) -> str:
        return (self.state / "key").read_text().strip()

    @property
    def model(self) -> str:
        return str(self.running["model"])

    def text(self) -> str:
        return self.output.read_text()

    def pid_of(self, name: str) -> int:
        """The process that leads the group `name` now, found by what `up` printed last about it."""
        found: list[str] = re.findall(rf"^{re.escape(name)}: \w+ \(pid (\d+)\)", self.text(), re.MULTILINE)
        return int(found[-1])

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        pid = self.pid_of(name)
        os.killpg(pid, number)
        return pid

    def client(self, timeout_s: float = 60.0) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {self.key}"}, timeout=timeout_s)

    def chat(self, text: str = "Say hello.", timeout_s: float = 60.0, **fields: Any) -> httpx.Response:
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": 4, **fields}
        with self.client(timeout_s) as client:
            return client.post("/chat/completions", json=body)

    def metric(self, process: str, name: str, **labels: str) -> float:
        """The sum of a metric's samples on a worker, the frontend or the gateway. The parser gives every counter the
        ending `_total`, also where the text has none."""
        running = self.running
        urls = {"gateway": running["internal_url"], "frontend": running["frontend_url"], **running["worker_urls"]}
        text = httpx.get(f"{urls[process]}/metrics", timeout=30).text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def until(self, what: Callable[[], bool], within_s: float, why: str) -> float:
        """Wait until it is so; the answer is how long it took."""
        started = time.monotonic()
        while not what():
            assert self.process.poll() is None, f"`up` ended: {self.text()[-2000:]}"
            assert time.monotonic() - started < within_s, f"{why} not within {within_s} s: {self.text()[-2000:]}"
            time.sleep(0.1)
        return time.monotonic() - started

    def is_back(self, name: str, dead: int) -> bool:
        """A process of that name was ready after the one of pid `dead`."""
        ready = re.findall(rf"^{name}: ready \(pid (\d+)\)", self.text(), re.MULTILINE)
        return int(ready[-1]) != dead

    def cached_for(self, tenant: str, text: str, timeout_s: float) -> int:
        """Ask the frontend itself as that tenant's gateway does; the tokens of the prompt that were found, not computed."""
        body = {"model": self.model, "messages": [{"role": "user", "content": text}], "max_tokens": 2, "temperature": 0}
        answer = httpx.post(
            f"{self.running['frontend_url']}/v1/chat/completions",
            json=body,
            headers={"x-tenant-id": tenant},
            timeout=timeout_s,
        )
        return int(answer.raise_for_status().json()["usage"]["prompt_tokens_details"]["cached_tokens"])

    def answers(self, timeout_s: float = 20) -> bool:
        """One request goes through now."""
        try:
            return self.chat(timeout_s=timeout_s).status_code == 200
        except httpx.HTTPError:
            return False


def start_up(
    state: Path,
    *arguments: str,
    port: int | None = None,
    environment: dict[str, str] | None = None,
    output: Path | None = None,
) -> Stack:
    """`prime-inference up` as a process of its own session, its output in a file."""
    port = free_ports(1)[0] if port is None else port
    output = state.with_suffix(".out") if output is None else output
    with output.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "prime_inference", "up", "--port", str(port), "--state-dir", str(state), *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    return Stack(process, state, port, output)


def stop(stack: Stack, number: signal.Signals = signal.SIGTERM, within_s: float = 40.0) -> list[int]:
    """Stop it as a user would; the answer is the pids of its descendants that were left."""
    if stack.process.poll() is None:
        family = psutil.Process(stack.process.pid).children(recursive=True)
        stack.process.send_signal(number)
        stack.process.wait(within_s)
        _, alive = psutil.wait_procs(family, timeout=5)
        left = [process.pid for process in alive]
        for process in alive:
            process.kill()
        return left
    return []


@contextmanager
def running_stack(state: Path, *arguments: str, within_s: float) -> Iterator[Stack]:
    stack = start_up(state, *arguments)
    try:
        stack.until((state / "running.json").exists, within_s, "serving")
        yield stack
    finally:
        left = stop(stack)
    assert left == []
