"""One look at a node, written as a fixture: `python -m prime_inference.health.capture OUT.json`.

Needs the standard library and `pynvml` only, so that it runs on a GPU host where nothing else is installed.
"""

import argparse
import json
import platform
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prime_inference.health.deadline import Probe
from prime_inference.health.readings import Snapshot
from prime_inference.health.sources.fixture import to_json
from prime_inference.health.sources.imex import ImexCtl
from prime_inference.health.sources.kmsg import Kmsg
from prime_inference.health.sources.nvml import Nvml
from prime_inference.health.sources.sysfs import Sysfs
from prime_inference.health.xids import event_in

DEADLINE_S = 20.0
"""A first NVML call on a host with eight GPUs takes seconds."""


def capture(out: Path, sysfs_root: Path = Path("/sys"), kmsg: Path = Path("/dev/kmsg")) -> dict[str, Any]:
    """Write the fixture; return how each probe ended."""
    node = Sysfs(sysfs_root)
    gpus = Probe("nvml", Nvml().gpus, DEADLINE_S).ask()
    ports = Probe("sysfs", node.ports, DEADLINE_S).ask()
    lines = Probe("kmsg", Kmsg(kmsg).lines, DEADLINE_S).ask()
    imex = Probe("imex", ImexCtl("nvidia-imex-ctl").state, DEADLINE_S).ask()
    snapshot = Snapshot(
        at=time.time(),
        boot_id="captured",
        gpus=None if gpus.value is None else tuple(replace(gpu, uuid=f"gpu-{gpu.index}") for gpu in gpus.value),
        ports=ports.value,
        kernel=None if lines.value is None else tuple(line for line in lines.value if event_in(line.text)),
        imex=imex.value,
    )
    endings = {
        "nvml": (gpus.ending, gpus.error),
        "sysfs": (ports.ending, ports.error),
        "kmsg": (lines.ending, lines.error),
        "imex": (imex.ending, imex.error),
    }
    probes = {name: {"ending": ending.value, "error": error} for name, (ending, error) in endings.items()}
    provenance = {
        "captured": True,
        "captured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "kernel": platform.release(),
        "probes": probes,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(to_json(snapshot, provenance), encoding="utf-8")
    return probes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    print(json.dumps(capture(parser.parse_args().out)))


if __name__ == "__main__":
    main()
