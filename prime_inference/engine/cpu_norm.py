"""RMS norm by vLLM's own C kernels on a CPU.

vLLM 0.31 dispatches norms through its IR ops, and its C implementation is marked for GPUs only, so that a CPU engine runs
six PyTorch operators a norm, 61 norms a token of SmolLM2. The CPU build carries the C kernels all the same; this
registers them as a provider (vLLM's `register_impl`), which `presets.py` names in `--kernel-config`.
"""

from typing import Any

PROVIDER = "prime_cpu"

IR_OPS = ("rms_norm", "fused_add_rms_norm")

KERNEL_CONFIG = {"ir_op_priority": {op: [PROVIDER, "native"] for op in IR_OPS}}
"""The value of vLLM's `--kernel-config`: ours where its arguments fit, else vLLM's own."""


def register_norms() -> None:
    """Register both implementations once a process. Imports torch and vLLM's compiled operators."""
    import torch  # noqa: PLC0415 - only inside a worker
    from torch import Tensor  # noqa: PLC0415
    from vllm import ir  # noqa: PLC0415
    from vllm.platforms import current_platform  # noqa: PLC0415

    if PROVIDER in ir.ops.rms_norm.impls:
        return
    current_platform.import_kernels()
    kernels: Any = torch.ops._C

    def fits(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> bool:
        return variance_size is None and weight is not None and weight.dtype == x.dtype and x.is_contiguous()

    def fused_fits(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> bool:
        return fits(x, weight, epsilon, variance_size) and x_residual.is_contiguous()

    def rms_norm(x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None) -> Tensor:
        output = torch.empty_like(x)
        kernels.rms_norm(output, x, weight, epsilon)
        return output

    def fused_add_rms_norm(
        x: Tensor, x_residual: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
    ) -> tuple[Tensor, Tensor]:
        kernels.fused_add_rms_norm(x, x_residual, weight, epsilon)
        return x, x_residual

    ir.ops.rms_norm.register_impl(PROVIDER, supports_args=fits)(rms_norm)
    ir.ops.fused_add_rms_norm.register_impl(PROVIDER, supports_args=fused_fits, inplace=True)(fused_add_rms_norm)
