"""Where the workers run: CPU or CUDA, and which GPU each gets."""

import shutil
import subprocess
from dataclasses import dataclass

from prime_inference.local.errors import UpError
from prime_inference.local.options import DeviceChoice

GPU_MEMORY_SHARE = 0.9
"""What all workers of one GPU may use together; vLLM's own default for one."""

NVIDIA_SMI_TIMEOUT_S = 20.0
"""A driver in trouble can make nvidia-smi hang."""


@dataclass(frozen=True)
class WorkerDevice:
    """`gpu` is None on a CPU; `memory_share` is the part of the GPU's memory that the worker may use."""

    gpu: str | None
    memory_share: float


CPU_DEVICE = WorkerDevice(gpu=None, memory_share=0.0)


def visible_gpus(cuda_visible_devices: str | None) -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES names them; empty without a working driver."""
    if cuda_visible_devices is not None:
        return [name for name in cuda_visible_devices.split(",") if name.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=NVIDIA_SMI_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UpError(
            f"nvidia-smi did not answer within {NVIDIA_SMI_TIMEOUT_S:g} s: the driver is in trouble."
        ) from error
    return listed.stdout.split() if listed.returncode == 0 else []


def assign(choice: DeviceChoice, gpus: list[str], workers: int) -> list[WorkerDevice]:
    """A device for each worker. With fewer GPUs than workers, neighbours share one and its memory.

    Raises UpError for `--device cuda` without a GPU.
    """
    if choice is DeviceChoice.CUDA and not gpus:
        raise UpError("--device cuda, but no CUDA GPU is visible (nvidia-smi lists none). Use --device cpu.")
    if choice is DeviceChoice.CPU or not gpus:
        return [CPU_DEVICE] * workers
    placed = [gpus[index % len(gpus)] for index in range(workers)]
    return [WorkerDevice(gpu, round(GPU_MEMORY_SHARE / placed.count(gpu), 3)) for gpu in placed]
