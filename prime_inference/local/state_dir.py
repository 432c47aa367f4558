"""The state folder of one running stack: its lock, its files, its logs."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prime_inference.local.errors import UpError


def default_state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "prime-inference"


@dataclass(frozen=True)
class StateDir:
    root: Path

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def discovery(self) -> Path:
        """Dynamo's file discovery: who serves what, while this stack runs."""
        return self.root / "discovery"

    @property
    def valkey(self) -> Path:
        return self.root / "valkey"

    @property
    def fleet_file(self) -> Path:
        return self.root / "fleet.yaml"

    @property
    def keys_file(self) -> Path:
        return self.root / "keys.yaml"

    @property
    def key_file(self) -> Path:
        """The local key in plain text, for the person on this machine."""
        return self.root / "key"

    @property
    def secret_file(self) -> Path:
        """The gateway's secret: kept, so that sessions find their cache after a restart."""
        return self.root / "secret"

    @property
    def router_policy_file(self) -> Path:
        return self.root / "router-policy.yaml"

    @property
    def running_file(self) -> Path:
        """Ports and process ids of the stack that holds the lock, for whoever wants to look at it."""
        return self.root / "running.json"

    def log_of(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder. Raises UpError when another `up` holds it or it cannot be written."""
        try:
            for folder in (self.root, self.logs, self.discovery, self.valkey):
                folder.mkdir(parents=True, exist_ok=True)
            self.root.chmod(0o700)
            lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise UpError(
                f"cannot use the state folder {self.root}: {error.strerror}. Choose another with --state-dir."
            ) from error
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(lock, 32).decode() or "unknown"
                raise UpError(
                    f"another `prime-inference up` (process {holder}) runs on the state folder {self.root}. "
                    "Stop it, or choose another with --state-dir."
                ) from None
            os.truncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            yield
        finally:
            os.close(lock)
