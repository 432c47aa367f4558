"""Lets `prime_kernels` be imported from this checkout where the package is not installed, and offers the GPU."""

import importlib.util
import sys
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parents[2] / "kernels"

if importlib.util.find_spec("prime_kernels") is None:
    spec = importlib.util.spec_from_file_location(
        "prime_kernels", KERNELS / "__init__.py", submodule_search_locations=[str(KERNELS)]
    )
    package = importlib.util.module_from_spec(spec)
    sys.modules["prime_kernels"] = package
    spec.loader.exec_module(package)


@pytest.fixture
def gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    return "cuda"
