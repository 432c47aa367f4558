"""What every result file says about where it came from."""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def provenance(packages: list[str], sources: list[Path]) -> dict[str, Any]:
    """Command, time, machine, versions, commit and the hash of the measured sources (paths relative to the root)."""

    def run(*command: str) -> str:
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()

    # A GPU host without git gets a copy of the tree, and the commit from who sent it.
    carried = os.environ.get("PRIME_COMMIT")
    digest = hashlib.sha256()
    for source in sorted(sources):
        digest.update(source.relative_to(ROOT).as_posix().encode() + b"\0" + source.read_bytes())
    return {
        "command": " ".join(["python", "-m", *sys.orig_argv[sys.orig_argv.index("-m") + 1 :]]).replace(f"{ROOT}/", ""),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "kernel": platform.release(),
            "load_average_at_start": os.getloadavg(),
            "gpus": gpus(),
        },
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
        "commit": carried or run("git", "rev-parse", "HEAD"),
        "uncommitted_changes": None
        if carried
        else bool(run("git", "status", "--porcelain", "--", *[str(path) for path in sources])),
        "source_sha256": digest.hexdigest(),
    }


def write(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")


def gpus() -> list[str]:
    """Index, UUID, name and driver of each, a line as nvidia-smi prints it; empty where there is none."""
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=index,uuid,name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, check=True, capture_output=True, text=True, timeout=60).stdout.strip().splitlines()


def cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()
