"""One canned engine behind the real Dynamo frontend a session, and the gateway before it."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from prime_inference.engine.tool_settings import TOOL_PARSER
from prime_inference.toolcalls.compiler import TagCompiler
from tests.support.gateway import KEY, RunningGateway, gateway

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
READY_S = 240.0
"""For Python, Dynamo's runtime and the model card on a busy core; alone it takes about 5 s."""


@dataclass(frozen=True)
class Frontend:
    url: str
    tags_file: Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built in a process of its own: transformers warns on import, and warnings are errors here."""
    folder = tmp_path_factory.mktemp("model")
    subprocess.run((sys.executable, str(HERE / "glm_model.py"), str(folder)), check=True, capture_output=True)
    return folder


def run_frontend(model: Path, folder: Path, tool_parser: str) -> Iterator[Frontend]:
    port, tags, log = free_port(), folder / "tags.jsonl", folder / "engine.log"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DYN_LOG": "error", "HOME": str(folder)}
    command = (sys.executable, str(HERE / "canned_engine.py"), str(model), str(port), tool_parser, str(tags))
    with log.open("w") as output:
        engine = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        wait_ready(f"http://127.0.0.1:{port}/v1/models", engine, log)
        yield Frontend(f"http://127.0.0.1:{port}", tags)
    finally:
        engine.terminate()
        try:
            engine.wait(10)
        except subprocess.TimeoutExpired:
            engine.kill()
            engine.wait()


def wait_ready(url: str, engine: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        assert engine.poll() is None, log.read_text()[-2000:]
        try:
            if httpx.get(url, trust_env=False).json()["data"]:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"the frontend was not ready in {READY_S} s: {log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def raw_frontend(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    """No parsers: Dynamo leaves the text as it is."""
    yield from run_frontend(model_folder, tmp_path_factory.mktemp("raw"), "none")


@pytest.fixture(scope="session")
def parsing_frontend(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    """Both of Dynamo's parsers, and its structural tags, as `Parsing.FRONTEND` tells its workers."""
    yield from run_frontend(model_folder, tmp_path_factory.mktemp("parsing"), TOOL_PARSER)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def compiler(model_folder: Path) -> AsyncIterator[TagCompiler]:
    """One for all tests: its process imports torch."""
    compiler = TagCompiler(str(model_folder), with_grammar=True)
    yield compiler
    await compiler.close()


@dataclass(frozen=True)
class Door:
    """The gateway's API, and what it takes to be let in."""

    url: str
    headers: dict[str, str]
    running: RunningGateway


async def compiler_ready(running: RunningGateway) -> None:
    """The gateway's compile process gives up after a minute and is started again by the next request: on a busy core that is a
    few 503s first."""
    tool = {"type": "function", "function": {"name": "ready", "parameters": {"type": "object", "properties": {}}}}
    body = {"model": "glm", "messages": [{"role": "user", "content": "x"}], "tools": [tool], "max_tokens": 1}
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        async with running.session.post(f"{running.url}/chat/completions", json=body) as response:
            if response.status == 200:
                return
            assert response.status == 503, await response.text()
    raise AssertionError(f"no grammar compiler in {READY_S} s")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def door(
    raw_frontend: Frontend, model_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Door]:
    tools: dict[str, object] = {"format": "glm", "tokenizer": str(model_folder), "thinking": True}
    folder = tmp_path_factory.mktemp("gateway")
    async with gateway(folder, [raw_frontend.url], model="glm", tools=tools) as running:
        await compiler_ready(running)
        yield Door(running.url, {"authorization": f"Bearer {KEY}"}, running)
