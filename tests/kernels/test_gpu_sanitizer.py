"""compute-sanitizer over every kernel."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

CASE = Path(__file__).parent / "sanitizer_case.py"


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="needs compute-sanitizer")
@pytest.mark.parametrize("tool", ["memcheck", "synccheck"])
def test_the_sanitizer_finds_nothing(gpu: str, tool: str) -> None:
    import prime_kernels

    # The case imports the package by its folder's parent, installed or not.
    spec = prime_kernels.__spec__
    assert spec is not None
    assert spec.origin is not None
    start = (
        "import importlib.util, runpy, sys;"
        f"s = importlib.util.spec_from_file_location('prime_kernels', {spec.origin!r},"
        f" submodule_search_locations=[{str(Path(spec.origin).parent)!r}]);"
        "m = importlib.util.module_from_spec(s); sys.modules['prime_kernels'] = m; s.loader.exec_module(m);"
        f"runpy.run_path({str(CASE)!r}, run_name='__main__')"
    )
    # Without this, the sanitizer sees torch's pool as one allocation and misses what lies beyond a tensor.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, "-c", start]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "every kernel ran" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout
