"""From a link that goes down to a deployment that gets no new requests, timed.

The agent's and the fleet watch's processes at the chart's intervals, the real gateway under requests; sysfs, the
Kubernetes API and the deployments are stand-ins.
"""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.gateway.test_relay import CHAT, UNARY
from tests.support.gateway import gateway
from tests.support.kubernetes import kubernetes
from tests.support.upstream import answers, upstream
from tests.unit.health.test_sources import card

ROOT = Path(__file__).parents[2]
OUT_WITHIN_S = 30.0
"""The aim: link down to out of rotation."""

ROUND_S = 5.0
"""The agent's interval in the chart."""


async def until(what: Callable[[], bool], within_s: float) -> None:
    started = time.monotonic()
    while not what():
        assert time.monotonic() - started < within_s, "did not happen in time"
        await asyncio.sleep(0.05)


@contextmanager
def process(*arguments: str, log: Path, **environment: str) -> Iterator[None]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    command = [sys.executable, "-c", "from prime_inference.health.command import health; health()", *arguments]
    with log.open("wb") as out:
        running = subprocess.Popen(command, stdout=out, stderr=out, env=env)
        try:
            yield
        finally:
            running.send_signal(signal.SIGTERM)
            running.wait(15)


async def link_down(folder: Path, after_s: float = 0.0) -> dict[str, float]:
    """Seconds from the link's end to the node's condition, to the fleet file, to the first request elsewhere. No request
    fails meanwhile. `after_s`: how long after the agent's first round the link ends."""
    with kubernetes() as cluster:
        for number, name in enumerate(("node-a", "node-c")):
            cluster.add_node(name)
            cluster.add_worker(f"d{number}", "prefill", name)
            cluster.add_worker(f"d{number}", "decode", name)
        port_files = card(folder / "sys")
        source, target = folder / "source.yaml", folder / "fleet.yaml"
        environment = {
            "PRIME_HEALTH_NODE": "node-a",
            "PRIME_HEALTH_PORT": "0",
            "PRIME_HEALTH_INTERVAL_SECONDS": str(ROUND_S),
            "PRIME_HEALTH_SYSFS_ROOT": str(folder / "sys"),
            "PRIME_HEALTH_KMSG_PATH": os.devnull,
            "PRIME_HEALTH_NVML": "false",
            "PRIME_HEALTH_CORDON": "true",
            "PRIME_HEALTH_API_SERVER": cluster.url,
        }
        files = ("--source", str(source), "--target", str(target))
        watch = ("fleet", *files, "--namespace", "n", "--api-server", cluster.url)
        answer = answers(UNARY)
        async with upstream(answer) as east, upstream(answer) as west, gateway(folder, [east.url, west.url]) as gw:
            source.write_text(target.read_text())

            async def ask() -> None:
                async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
                    assert response.status == 200, await response.text()

            with process("agent", log=folder / "agent.log", **environment), process(*watch, log=folder / "watch.log"):
                await until(lambda: cluster.condition("node-a") == "True", 60)
                await asyncio.sleep(after_s)
                await ask()
                assert (len(east.requests), len(west.requests)) == (1, 0), "d0 has priority"
                (port_files / "state").write_text("1: DOWN\n")
                started = time.monotonic()
                seconds: dict[str, float] = {}
                while not west.requests:
                    took = time.monotonic() - started
                    assert took < OUT_WITHIN_S
                    if cluster.condition("node-a") == "False":
                        seconds.setdefault("to_condition", took)
                    if "draining: true" in target.read_text():
                        seconds.setdefault("to_draining", took)
                    await ask()
                    await asyncio.sleep(0.02)
                seconds["to_first_request_elsewhere"] = time.monotonic() - started
                assert cluster.tainted("node-a")
                before = len(east.requests)
                for _ in range(20):
                    await ask()
                assert len(east.requests) == before, "nothing new goes there"
                return seconds


async def record(folder: Path, runs: int, seed: int) -> list[dict[str, float]]:
    chance = random.Random(seed)
    samples = []
    for run in range(runs):
        (folder / str(run)).mkdir()
        # The link ends anywhere between two rounds.
        samples.append(await link_down(folder / str(run), after_s=chance.uniform(0, ROUND_S)))
        print(samples[-1], flush=True)
    return samples
