"""What this machine did meanwhile: how busy each core was, what a target used of it, what memory it holds."""

from dataclasses import dataclass
from pathlib import Path

import psutil

TARGET_CORE = 0
LOAD_CORE = 1
"""The load generator, the upstream and Valkey."""


@dataclass(frozen=True)
class CoreTimes:
    busy: float
    total: float


def core_times() -> list[CoreTimes]:
    """Seconds since the start, of each core. Time that the hypervisor took away counts as busy."""
    found = []
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, idle, waiting, *rest = (float(field) for field in fields[:8])
            total = user + nice + system + idle + waiting + sum(rest)
            found.append(CoreTimes(total - idle - waiting, total))
    return found


def busy_shares(before: list[CoreTimes], after: list[CoreTimes]) -> list[float]:
    """0 to 1, of each core."""
    return [
        round((late.busy - early.busy) / max(1e-9, late.total - early.total), 3)
        for early, late in zip(before, after, strict=True)
    ]


def family(pid: int) -> list[psutil.Process]:
    leader = psutil.Process(pid)
    return [leader, *leader.children(recursive=True)]


def cpu_seconds(pid: int) -> float:
    """User and system, of the process and its descendants that live."""
    return sum(sum(process.cpu_times()[:2]) for process in family(pid))


def memory_bytes(pid: int) -> int:
    """Proportional set size: shared pages count once."""
    return sum(int(process.memory_full_info().pss) for process in family(pid))
