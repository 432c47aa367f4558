"""IMEX, the service that lets GPUs of several nodes map each other's memory: `nvidia-imex-ctl -q`."""

import shutil
import subprocess

IMEX_WITHIN_S = 2.0
"""The command itself may hang (kubernetes-sigs/dra-driver-nvidia-gpu issue 1417)."""


class ImexHung(TimeoutError):
    """The command did not end; it was killed. By its kind the probe knows a hang."""


class ImexCtl:
    def __init__(self, command: str) -> None:
        self._command = command

    def state(self) -> str | None:
        """READY or what else the service says; None without the command. Raises ImexHung."""
        path = shutil.which(self._command)
        if path is None:
            return None
        try:
            run = subprocess.run([path, "-q"], capture_output=True, text=True, timeout=IMEX_WITHIN_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise ImexHung(f"{self._command} -q did not end within {IMEX_WITHIN_S} s") from error
        return run.stdout.strip().splitlines()[0] if run.stdout.strip() else f"exit {run.returncode}"
