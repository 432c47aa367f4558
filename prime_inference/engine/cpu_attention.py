"""vLLM's CPU attention kept off its AMX kernel.

vLLM 0.31 takes the AMX kernel for bfloat16 wherever the processor has AMX tiles. On a Xeon with AMX it gave wrong
attention: SmolLM2 answered "What is the capital of France?" with "L'Étoile, la Marseillaise, ..." at temperature 0,
while the vector kernel, float32, and transformers all answered "The capital of France is Paris." The vector kernel was
no slower on that prompt (0.39 s against 1.1 s), so every CPU worker of ours takes it (docs/adr/0004).
"""

import os
from types import ModuleType
from typing import Any

KERNEL_VARIABLE = "PRIME_CPU_ATTENTION"
"""`vector` (the default) or `stock`, which leaves vLLM's own choice."""

KERNELS = ("vector", "stock")


def avoid_amx() -> None:
    """Patch the running vLLM. Raises ValueError on an unknown value of the variable."""
    wanted = os.environ.get(KERNEL_VARIABLE, "vector")
    if wanted not in KERNELS:
        raise ValueError(f"{KERNEL_VARIABLE}={wanted!r}: allowed are {', '.join(KERNELS)}")
    if wanted == "stock":
        return
    from vllm.v1.attention.backends import cpu_attn  # noqa: PLC0415 - importing vLLM costs seconds: only inside a worker

    patch_backend(cpu_attn)


def patch_backend(backend: ModuleType) -> None:
    """Make the backend's choice of kernel answer `vec` where it would answer `amx`."""
    stock: Any = backend._get_attn_isa
    if getattr(stock, "_prime_vector", False):
        return

    def without_amx(*args: Any, **kwargs: Any) -> str:
        chosen: str = stock(*args, **kwargs)
        return "vec" if chosen == "amx" else chosen

    without_amx._prime_vector = True  # type: ignore[attr-defined]
    backend._get_attn_isa = without_amx  # type: ignore[attr-defined]
