"""What a measured number needs beside it: command, machine, versions, commit and a hash of the sources that made it."""

import hashlib
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.provenance import ROOT, cpu_name

SOURCES = ("prime_inference/toolcalls", "gateway/toolcalls", "gateway/dialects", "benchmarks/toolcalls")
PACKAGES = ("jsonschema", "xgrammar")


def environment(command: str) -> dict[str, Any]:
    return {
        "command": command,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": subprocess.run(
            ("git", "rev-parse", "HEAD"), cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip(),
        "sources_sha256": sources_hash(),
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "load_1m": os.getloadavg()[0]},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }


def sources_hash() -> str:
    digest = hashlib.sha256()
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def write(out: Path, about: dict[str, Any], samples: dict[str, Any]) -> None:
    """One key a line: readable at the top, compact where the samples are."""
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in about.items()]
    lines += [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in samples.items()]
    out.write_text("{\n" + ",\n".join(lines) + "\n}\n")
