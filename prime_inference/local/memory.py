"""Is there enough memory for the stack? Asked before anything is started."""

from prime_inference.local.errors import UpError

CPU_WORKER_BYTES = 3_200_000_000
"""A vLLM CPU worker beside its weights: 2.2 GB of processes measured with SmolLM2, and 1 GiB of KV cache."""

STACK_BYTES = 800_000_000
"""Frontend, gateway, Valkey and supervisor together."""

MOCKER_BYTES = 400_000_000
"""A mocker process."""


def check_memory(available_bytes: int, needed_bytes: int) -> None:
    """Raises UpError when the stack would not fit."""
    if needed_bytes > available_bytes:
        raise UpError(
            f"too little memory: the stack needs about {needed_bytes / 1e9:.1f} GB and {available_bytes / 1e9:.1f} GB are "
            "available. Use fewer workers, a smaller model, or --engine mocker."
        )


def cpu_stack_bytes(workers: int, weight_bytes: int) -> int:
    return STACK_BYTES + workers * (CPU_WORKER_BYTES + weight_bytes)


def mocker_stack_bytes(workers: int) -> int:
    return STACK_BYTES + workers * MOCKER_BYTES
