"""Kernels of vLLM's CPU build that it carries and does not choose for decode.

* Linear layers of more than a mebibyte go to oneDNN. For one to sixteen rows vLLM's own copy of the SGL kernel took 0.83 to
  0.95 of oneDNN's time over SmolLM2's layers on two cores, from 64 rows on 1.1 to 1.3 of it: so the choice is for decode
  workers alone.
* SwiGLU runs as two slices, a SiLU and a product; the C kernel is built for every CPU and chosen on POWER only.
"""

import os
from typing import Any

DECODE_VARIABLE = "PRIME_CPU_DECODE_KERNELS"
"""`1` in the environment of a decode worker on a CPU."""

ANY_WEIGHT_BYTES = 1 << 40
"""More than any layer's weight: none is too large for the SGL kernel. (What that kernel cannot take, vLLM still sends on.)"""


def choose_decode_kernels() -> None:
    """Patch both choices. Does nothing without the variable. Imports torch and vLLM's compiled operators."""
    if os.environ.get(DECODE_VARIABLE) != "1":
        return
    import torch  # noqa: PLC0415 - only inside a worker
    from vllm.model_executor.layers import utils  # noqa: PLC0415
    from vllm.model_executor.layers.activation import SiluAndMul  # noqa: PLC0415
    from vllm.platforms import current_platform  # noqa: PLC0415

    current_platform.import_kernels()
    # vLLM's attention uses AMX and leaves it to oneDNN to ask the kernel for the tiles; without oneDNN it dies of an
    # illegal instruction.
    torch.cpu._init_amx()
    use_kernels(utils, SiluAndMul, torch.ops._C.silu_and_mul)


def use_kernels(layer_choice: Any, activation: Any, silu_and_mul: Any) -> None:
    """`layer_choice`: the module that picks a linear layer's kernel; `activation`: the SwiGLU class."""
    layer_choice._CPU_SGL_GEMM_MAX_WEIGHT_BYTES = ANY_WEIGHT_BYTES
    activation.op = silu_and_mul
    activation.forward_cpu = activation.forward_cuda
