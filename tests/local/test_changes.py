"""Changing a running stack under load: Dynamo's mocker for engines, everything else real. No client retries."""

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.load import Load, load
from tests.support.stack import Stack, running_stack

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

CLIENTS = 8
TOKENS = 60
WITHIN_S = 180
PARTS = ("valkey", "prefill", "decode", "frontend", "gateway")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    state = tmp_path_factory.mktemp("changes") / "state"
    with running_stack(state, "--engine", "mocker", "--context-tokens", "512", within_s=120) as stack:
        yield stack


async def told(stack: Stack, *words: str, within_s: float = WITHIN_S) -> str:
    """`prime-inference ...` as a person types it, to its end."""
    command = (sys.executable, "-m", "prime_inference", *words, "--state-dir", str(stack.state))
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(within_s):
        out, err = await process.communicate()
    assert process.returncode == 0, (out + err).decode()
    return out.decode().strip()


async def under_load(stack: Stack, *changes: tuple[str, ...]) -> tuple[Load, list[str]]:
    async with load(stack.url, stack.key, stack.model, clients=CLIENTS, tokens=TOKENS) as running:
        await asyncio.sleep(2)
        said = []
        for change in changes:
            began, before = time.monotonic(), running.whole
            said.append(await told(stack, *change))
            print(
                f"{' '.join(change)}: {said[-1]} in {time.monotonic() - began:.1f} s, {running.whole - before} answered"
            )
        await asyncio.sleep(2)
    print(f"{running.whole} whole answers, {len(running.failed)} failed, the longest took {running.longest_s:.1f} s")
    return running, said


async def test_pools_grow_and_shrink_under_load(stack: Stack) -> None:
    running, said = await under_load(stack, ("scale", "--decode", "3", "--prefill", "2"), ("scale", "--decode", "1"))
    assert said == ["2 prefill, 3 decode", "2 prefill, 1 decode"]
    assert running.failed == []
    assert running.whole > CLIENTS
    assert set(stack.running["worker_urls"]) == {"prefill-0", "prefill-1", "decode-0"}
    await told(stack, "scale", "--prefill", "1")


@pytest.mark.parametrize("target", ["gateway", "frontend", "decode", "prefill", "valkey", "all"])
async def test_a_rolling_restart_under_load_fails_no_request(stack: Stack, target: str) -> None:
    running, said = await under_load(stack, ("restart", target))
    assert all(name in said[0] for name in (PARTS if target == "all" else (target,)))
    assert running.failed == []
    assert running.whole > CLIENTS
    assert stack.answers()


async def test_what_cannot_be_done_is_told_and_changes_nothing(stack: Stack, tmp_path: Path) -> None:
    before = stack.running["worker_urls"]
    for words, reason in (
        (("scale", "--decode", "0", "--state-dir", str(stack.state)), "greater than"),
        (("scale", "--state-dir", str(stack.state)), "--prefill"),
        (("restart", "everything", "--state-dir", str(stack.state)), "everything"),
        (("scale", "--decode", "2", "--state-dir", str(tmp_path)), "no running"),
    ):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "prime_inference", *words, stderr=asyncio.subprocess.PIPE
        )
        _, err = await process.communicate()
        assert process.returncode in (1, 2)
        assert reason in err.decode()
    assert stack.running["worker_urls"] == before
