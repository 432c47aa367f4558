"""compute-sanitizer over every kernel, in a small program of its own (sanitizer_case.cu).

The program is built with PRIME_SANITIZED: no registers are handed over between warps (setmaxnreg), for which the
instrumented kernel waits for ever, and each lane arrives at barriers by itself, since racecheck does not take one lane's
arrival for its warp's. Everything else is the kernel as it ships.
"""

import shutil
import subprocess
from pathlib import Path

import pytest
from prime_kernels.build import PACKAGE, SOURCES, find_nvcc

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

CASE = Path(__file__).parent / "sanitizer_case.cu"


def compile_case(output: Path, nvcc: str) -> None:
    headers = f"-I{PACKAGE / 'nvfp4_sparse_mla' / 'csrc'}"
    target = ["-gencode=arch=compute_90a,code=sm_90a", "-DPRIME_SANITIZED", "-lineinfo", "-std=c++17", "-O3"]
    subprocess.run([nvcc, *target, headers, str(CASE), *map(str, SOURCES), "-o", str(output)], check=True)


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="needs compute-sanitizer")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
def test_the_sanitizer_finds_nothing(gpu: str, tool: str, tmp_path: Path) -> None:
    nvcc = find_nvcc()
    if nvcc is None:
        pytest.skip("needs nvcc")
    compile_case(tmp_path / "case", nvcc)
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", str(tmp_path / "case")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "every kernel ran" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout
