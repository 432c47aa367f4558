"""What users would pick instead, each installed from its pins into a folder of its own."""

import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.gateway.build import WORK

PINS = Path(__file__).parent / "rivals"
LITELLM, VLLM_ROUTER = "litellm", "vllm-router"
INSTALL_TIMEOUT_S = 900


class RivalMissing(Exception):
    """It could not be installed; the message is the installer's."""


def installed(name: str) -> Path:
    """The folder of the rival's programs, installed anew when its pins have changed. Raises RivalMissing."""
    pins, folder = PINS / f"{name}.txt", WORK / name
    mark = folder / "pins.txt"
    if mark.exists() and mark.read_text() == pins.read_text():
        return folder / "bin"
    print(f"installing {name}", file=sys.stderr)
    venv.create(folder, clear=True, with_pip=True)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(pins)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S)
    if done.returncode:
        raise RivalMissing(f"{name}: {done.stderr.strip().splitlines()[-1]}")
    mark.write_text(pins.read_text())
    return folder / "bin"


def version_of(name: str) -> str:
    """As pinned."""
    for line in (PINS / f"{name}.txt").read_text().splitlines():
        package, _, version = line.partition("==")
        if package == name:
            return version
    raise KeyError(name)
