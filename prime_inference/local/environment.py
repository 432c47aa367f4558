"""The environment of the stack's processes: an explicit list, so that what a child sees does not depend on who starts it."""

from collections.abc import Mapping

INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "LC_ALL",
    "TMPDIR",
    "VIRTUAL_ENV",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "HF_HOME",
    "HF_TOKEN",
    "HF_ENDPOINT",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    # Hosts set these where NVLink multicast must stay off; NCCL, symmetric memory and NVSHMEM hang without them.
    "NCCL_NVLS_ENABLE",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "NVSHMEM_DISABLE_NVLS",
    # Hosts set these where OpenBLAS picks a kernel that its processor computes wrongly.
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "PRIME_NIXL_PROGRESS_SLEEP_US",
)
"""Variables a child gets from us where we have them."""

INHERITED_PREFIXES = ("NCCL_", "UCX_", "NVIDIA_", "VLLM_", "FLASHINFER_")
"""Fabric settings of a GPU host, and what an operator tells the engine beside its command line; ours stand over them."""


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name in INHERITED or name.startswith(INHERITED_PREFIXES)
    }
