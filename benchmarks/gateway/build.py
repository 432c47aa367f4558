"""Compiles the load generator and the upstream with the machine's C compiler, into a folder that git ignores."""

import subprocess
from pathlib import Path

from benchmarks.provenance import ROOT

SOURCES = Path(__file__).parent / "native"
WORK = ROOT / ".cache" / "bench-gateway"
"""Everything this benchmark makes for itself: programs, the rivals' installations, logs."""

FLAGS = ["-O2", "-Wall", "-Wextra", "-std=gnu11"]


def build(name: str) -> Path:
    """The program of `native/<name>.c`, compiled anew where a source is newer. Raises CalledProcessError."""
    program = WORK / "bin" / name
    newest = max(source.stat().st_mtime for source in SOURCES.iterdir())
    if not program.exists() or program.stat().st_mtime < newest:
        program.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cc", *FLAGS, "-o", str(program), str(SOURCES / f"{name}.c")], check=True)
    return program
