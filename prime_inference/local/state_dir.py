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

    @property
    def control_socket(self) -> Path:
        """Where a running `up` is told to change (local/control.py)."""
        return self.root / "control"

    @property
    def admin_key_file(self) -> Path:
        """A key for the console and the admin API, in plain text, for the person on this machine."""
        return self.root / "admin-key"

    @property
    def lock_file(self) -> Path:
        """Also the mark of a folder that is ours."""
        return self.root / "lock"

    def _claim(self) -> None:
        """Make the folder, or see that it is ours: files in it will be deleted. Raises UpError."""
        if not self.root.exists():
            self.root.mkdir(parents=True, mode=0o700)
        elif not self.lock_file.exists() and any(self.root.iterdir()):
            raise UpError(
                f"{self.root} holds files of something else. Choose an empty or a new folder with --state-dir."
            )
        for folder in (self.logs, self.discovery, self.valkey):
            folder.mkdir(exist_ok=True)

    def log_of(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder. Raises UpError when another `up` holds it or it cannot be written."""
        try:
            self._claim()
            lock = os.open(self.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
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
            # Written by an earlier `up` that could not clean up after itself: its processes are gone.
            self.running_file.unlink(missing_ok=True)
            yield
        finally:
            os.close(lock)
