"""`prime-inference up` as a user meets it, with the mocker for engines."""

import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.support.stack import Stack, start_up, stop


def test_it_prints_the_url_a_key_a_curl_line_and_a_snippet_that_run(mocker_stack: Stack) -> None:
    text = mocker_stack.text()
    assert mocker_stack.url in text
    assert re.search(r"^  key +sk-\S{40,}$", text, re.MULTILINE)
    curl = next(line for line in text.splitlines() if line.startswith("curl "))
    done = subprocess.run(curl + " --silent --fail", shell=True, capture_output=True, text=True, check=True)
    assert '"choices"' in done.stdout
    snippet = text[text.index("from openai import") :]
    assert len(snippet.strip().splitlines()) == 6
    done = subprocess.run([sys.executable, "-c", snippet], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_a_second_up_on_the_same_state_folder_is_refused(mocker_stack: Stack, tmp_path: Path) -> None:
    other = start_up(mocker_stack.state, "--engine", "mocker", output=tmp_path / "other.out")
    assert other.process.wait(30) == 1
    assert "another `prime-inference up`" in other.text()
    assert mocker_stack.answers()


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        stack = start_up(tmp_path / "state", "--engine", "mocker", port=listener.getsockname()[1])
        assert stack.process.wait(30) == 1
        assert "--port" in stack.text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "no-such-model"], "unknown model"),
        (["--device", "cuda"], "no CUDA GPU"),
        (["--device", "tpu"], "tpu"),
        (["--prefill", "0"], "prefill"),
    ],
)
def test_bad_input_is_told_and_nothing_is_started(tmp_path: Path, arguments: list[str], words: str) -> None:
    stack = start_up(tmp_path / "state", *arguments, environment={"CUDA_VISIBLE_DEVICES": ""})
    try:
        assert stack.process.wait(60) in (1, 2)
    finally:
        stop(stack)
    assert words in stack.text()
    assert "starting" not in stack.text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_while_starting_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    stack = start_up(tmp_path / "state", "--engine", "mocker")
    stack.until(lambda: "decode-0: starting" in stack.text(), 60, "starting")
    assert stop(stack, number) == []
    assert stack.process.returncode == 0
    assert "Traceback" not in stack.text()


def test_ctrl_c_while_the_model_is_fetched_ends_at_once(tmp_path: Path) -> None:
    """The hub is a server that accepts and never answers."""
    with socket.socket() as hub:
        hub.bind(("127.0.0.1", 0))
        hub.listen()
        environment = {
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}",
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DOWNLOAD_TIMEOUT": "300",
            "HF_HUB_ETAG_TIMEOUT": "300",
        }
        stack = start_up(tmp_path / "state", "--model", "someone/something", environment=environment)
        stack.until(lambda: "fetching someone/something" in stack.text(), 60, "fetching")
        time.sleep(1)
        assert stop(stack, signal.SIGINT, within_s=5) == []
        assert stack.process.returncode == 0


@pytest.mark.slow
def test_a_model_that_the_frontend_cannot_serve_stops_everything_with_a_reason(tmp_path: Path) -> None:
    model = tmp_path / "broken"
    model.mkdir()
    for name, text in (("config.json", "{}"), ("tokenizer.json", "{}"), ("model.safetensors", "")):
        (model / name).write_text(text)
    stack = start_up(tmp_path / "state", "--engine", "mocker", "--model", str(model))
    assert stack.process.wait(120) == 1
    text = stack.text()
    assert "the warm-up request got 503" in text
    assert "decode-0: stopped" in text


def test_a_process_that_cannot_start_stops_the_rest_and_is_named(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "valkey").mkdir(parents=True)
    (state / "lock").touch()
    (state / "valkey" / "appendonlydir").write_text("a file where Valkey wants a folder")
    stack = start_up(state, "--engine", "mocker")
    assert stack.process.wait(60) == 1
    text = stack.text()
    assert "valkey did not start: " in text
    assert f"Its log: {state}/logs/valkey.log" in text
    assert "Traceback" not in text


def test_the_death_of_the_supervisor_takes_every_child_along(tmp_path: Path) -> None:
    stack = start_up(tmp_path / "state", "--engine", "mocker")
    stack.until((stack.state / "running.json").exists, 120, "serving")
    family = psutil.Process(stack.process.pid).children(recursive=True)
    stack.process.kill()
    stack.process.wait()
    _, alive = psutil.wait_procs(family, timeout=20)
    for process in alive:
        process.kill()
    assert alive == []
