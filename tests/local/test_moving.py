"""Capacity brought in, and a deployment moved to another site, line by line as docs/operations.md has it: two local stacks
under load, with Dynamo's mocker for engines and everything else real. Clients never retry."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from tests.deploy.runbook import orders_of
from tests.local.test_runbooks import admin
from tests.support.load import load
from tests.support.stack import ROOT, Stack, running_stack
from tests.valkey_server import ValkeyServer

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

CLIENTS = 6
TOKENS = 20
RAMP_S = 6
OBEYED_S = 2.5
"""The gateway looks at its file and at its orders each second."""
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Stack]]:
    """Here, whose gateway is asked; and there, of which only frontend and workers are used."""
    folder = tmp_path_factory.mktemp("moving")
    mocked = ("--engine", "mocker", "--context-tokens", "512")
    with (
        running_stack(folder / "here", *mocked, within_s=180) as here,
        running_stack(folder / "there", *mocked, within_s=180) as there,
    ):
        yield here, there


def rewrite(stack: Stack, change: Callable[[dict[str, Any]], None]) -> None:
    """Another fleet file, whole at once: what `helm upgrade` of the values does on a cluster."""
    path = stack.state / "fleet.yaml"
    fleet = yaml.safe_load(path.read_text())
    change(fleet)
    partial = path.with_name("fleet.partial")
    partial.write_text(yaml.safe_dump(fleet))
    partial.replace(path)


def joined(there: Stack, **entry: Any) -> Callable[[dict[str, Any]], None]:
    """`burst`, served by the other stack, besides what the file has."""

    def change(fleet: dict[str, Any]) -> None:
        others = [each for each in fleet["deployments"] if each["name"] != "burst"]
        burst = {"name": "burst", "frontends": [there.running["frontend_url"]], **entry}
        fleet["deployments"] = [*others, burst]
        fleet["models"][0]["deployments"] = [each["name"] for each in fleet["deployments"]]

    return change


async def ordered(stack: Stack, line: str) -> dict[str, Any]:
    """An order of the page, with this test's names and a ramp of seconds."""
    line = line.replace('"ramp_seconds": 600', f'"ramp_seconds": {RAMP_S}').replace('"site": "old"', '"site": "local"')
    run = await asyncio.to_thread(admin, stack, line)
    assert run.returncode == 0, run.stderr
    done: dict[str, Any] = json.loads(run.stdout)
    assert done.get("result") == "done", (line, done)
    return done


async def canary(there: Stack) -> None:
    command = ("health", "canary", "--frontend", there.running["frontend_url"], "--model", there.model)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "prime_inference", *command, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    async with asyncio.timeout(WITHIN_S):
        out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()


def asked(stack: Stack) -> float:
    """Requests that its frontend has had."""
    return stack.metric("frontend", "dynamo_frontend_requests_total")


async def growths(seconds: float, *stacks: Stack) -> list[float]:
    before = [asked(stack) for stack in stacks]
    await asyncio.sleep(seconds)
    return [asked(stack) - had for stack, had in zip(stacks, before, strict=True)]


async def growth(stack: Stack, seconds: float) -> float:
    (grown,) = await growths(seconds, stack)
    return grown


async def test_an_overflow_deployment_comes_in_by_canary_and_ramp(stacks: tuple[Stack, Stack]) -> None:
    here, there = stacks
    probe, ramp, stopped, *taken_back = orders_of("Bringing up an overflow deployment")
    async with load(here.url, here.key, here.model, clients=CLIENTS, tokens=TOKENS) as running:
        rewrite(here, joined(there, overflow=True))
        await asyncio.sleep(OBEYED_S)
        assert await growth(there, 2) == 0, "it takes only what others cannot"
        await canary(there)
        assert (await ordered(here, probe))["detail"] == "probe: succeeded"
        await ordered(here, ramp)
        thirds = [await growth(there, RAMP_S / 3) for _ in range(4)]
        assert thirds[0] < thirds[3]
        await ordered(here, stopped)
        await asyncio.sleep(OBEYED_S)
        assert await growth(there, 2) == 0, "stopped at once"
        await ordered(here, ramp)
        rewrite(here, joined(there, overflow=False, weight=1.0))
        await asyncio.sleep(OBEYED_S)
        for line in taken_back:
            await ordered(here, line)
        await asyncio.sleep(OBEYED_S)
        shares = await growths(4, here, there)
    print(f"{running.whole} whole answers, {len(running.failed)} failed; by thirds of the ramp {thirds}, then {shares}")
    assert running.failed == []
    assert min(shares) > sum(shares) / 5, "about half of the sessions each"
    assert running.whole > CLIENTS


async def test_a_deployment_moves_to_another_site_and_the_former_is_switched_off(stacks: tuple[Stack, Stack]) -> None:
    here, there = stacks
    ramp, drained, undrained = orders_of("Moving a deployment between sites")
    own = ValkeyServer().start()

    def with_site(fleet: dict[str, Any]) -> None:
        joined(there, site="west", weight=0.05)(fleet)
        fleet["sites"] = [{"name": "west", "valkey": {"address": f"127.0.0.1:{own.port}"}}]

    def without_the_former(fleet: dict[str, Any]) -> None:
        fleet["deployments"] = [each for each in fleet["deployments"] if each["name"] == "burst"]
        fleet["models"][0]["deployments"] = ["burst"]

    async def held_here() -> int:
        run = await asyncio.to_thread(admin, here, "admin overview")
        found = [each["held"]["requests"] for each in json.loads(run.stdout)["deployments"] if each["name"] == "local"]
        return int(found[0])

    try:
        async with load(here.url, here.key, here.model, clients=CLIENTS, tokens=TOKENS) as running:
            rewrite(here, with_site)
            await asyncio.sleep(OBEYED_S)
            await canary(there)
            await ordered(here, orders_of("Bringing up an overflow deployment")[0])
            await ordered(here, ramp)
            await asyncio.sleep(RAMP_S)
            assert await growth(here, 2) > 0, "it serves yet"
            await ordered(here, drained)
            async with asyncio.timeout(WITHIN_S):
                while await held_here():
                    await asyncio.sleep(0.5)
            assert await growth(here, 2) == 0, "the former has nothing new"
            with_both = yaml.safe_load((here.state / "fleet.yaml").read_text())
            rewrite(here, without_the_former)
            await asyncio.sleep(OBEYED_S)
            killed = {name: here.kill(name) for name in ("frontend", "prefill-0", "decode-0")}
            after = running.whole
            assert await growth(there, 4) > 0
            for name, pid in killed.items():
                here.until(lambda name=name, pid=pid: here.is_back(name, pid), WITHIN_S, name)  # type: ignore[misc]
            rewrite(here, lambda fleet: fleet.update(with_both))
            await asyncio.sleep(OBEYED_S)
            assert await growth(here, 2) == 0, "its site is drained still"
            await ordered(here, undrained)
            await asyncio.sleep(OBEYED_S)
            assert await growth(here, 4) > 0, "it is back"
        print(f"{running.whole} whole answers, {running.whole - after} after the former died, {running.failed}")
        assert running.failed == []
        assert running.whole > after
    finally:
        own.close()
