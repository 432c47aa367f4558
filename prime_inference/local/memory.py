"""Is there enough memory for the stack? Asked before anything is started."""

from pathlib import Path

from prime_inference.local.errors import UpError

CPU_WORKER_BYTES = 3_200_000_000
"""A vLLM CPU worker beside its weights: 2.2 GB of processes measured with SmolLM2, and 1 GiB of KV cache."""

STACK_BYTES = 1_300_000_000
"""Frontend, gateway with its grammar compiler (0.5 GB), Valkey and supervisor together."""

MOCKER_BYTES = 400_000_000
"""A mocker process."""


CGROUP_LIMIT_FILE = Path("/sys/fs/cgroup/memory.max")
"""A container's limit (cgroup v2), `max` where there is none."""


def available_bytes(host_available: int, limit_file: Path = CGROUP_LIMIT_FILE) -> int:
    """What this process may still use: the host's free memory, or the container's limit if that is less."""
    try:
        limit = limit_file.read_text(encoding="ascii").strip()
    except OSError:
        return host_available
    return min(host_available, int(limit)) if limit.isdigit() else host_available


def check_memory(available: int, needed: int) -> None:
    """Raises UpError when the stack would not fit."""
    if needed > available:
        raise UpError(
            f"too little memory: the stack needs about {needed / 1e9:.1f} GB and {available / 1e9:.1f} GB are "
            "available. Use fewer workers, a smaller model, or --engine mocker."
        )


def cpu_stack_bytes(workers: int, weight_bytes: int) -> int:
    return STACK_BYTES + workers * (CPU_WORKER_BYTES + weight_bytes)


def mocker_stack_bytes(workers: int) -> int:
    return STACK_BYTES + workers * MOCKER_BYTES
