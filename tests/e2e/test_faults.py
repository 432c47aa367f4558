"""The real stack when its processes are killed or stopped, and when it cannot start."""

import json
import re
import signal
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.conftest import needs_on_ci
from tests.support.stack import Stack, start_up

pytestmark = [pytest.mark.e2e, pytest.mark.faults]

HEALED_WITHIN_S = 240.0
"""A vLLM worker takes about 40 s to start on two free cores."""


@pytest.mark.parametrize("name", ["valkey", "gateway", "frontend", "decode-0", "prefill-0"])
def test_a_killed_process_is_started_again_and_the_service_heals(real_stack: Stack, name: str) -> None:
    dead = real_stack.kill(name)
    statuses: list[int] = []

    def healed() -> bool:
        try:
            statuses.append(real_stack.chat(timeout_s=30).status_code)
        except httpx.TransportError:
            statuses.append(0)
        back = re.findall(rf"^{name}: ready \(pid (\d+)\)", real_stack.text(), re.MULTILINE)
        return statuses[-1] == 200 and int(back[-1]) != dead

    real_stack.until(healed, HEALED_WITHIN_S, f"{name} healed")
    print(f"statuses while {name} was away: {statuses}")
    # 0: no connection, to a gateway that is itself away.
    assert set(statuses) <= ({0, 200} if name == "gateway" else {200, 429, 503}), statuses


def test_workers_stalled_for_fifteen_seconds_serve_again(real_stack: Stack) -> None:
    for name in ("decode-0", "prefill-0"):
        real_stack.kill(name, signal.SIGSTOP)
    try:
        time.sleep(15)
    finally:
        for name in ("decode-0", "prefill-0"):
            real_stack.kill(name, signal.SIGCONT)
    real_stack.until(real_stack.answers, 60, "served again")
    restarts = len(re.findall(r"^(?:decode|prefill)-0: restarting", real_stack.text(), re.MULTILINE))
    assert restarts == len(re.findall(r"^(?:decode|prefill)-0: ready", real_stack.text(), re.MULTILINE)) - 2


@pytest.mark.slow
def test_a_model_that_vllm_cannot_load_stops_the_start_with_vllms_own_reason(tmp_path: Path) -> None:
    needs_on_ci(psutil.virtual_memory().available > 9e9, "memory for a second stack beside the first")
    model = tmp_path / "no-such-architecture"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"architectures": ["NoSuchModel"], "model_type": "llama"}))
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"\0" * 16)
    stack = start_up(tmp_path / "state", "--model", str(model))
    assert stack.process.wait(180) == 1
    text = stack.text()
    assert re.search(r"(prefill|decode)-0 did not start: \w+.*NoSuchModel", text), text
