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


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nvcc = find_nvcc()
    if nvcc is None or shutil.which("compute-sanitizer") is None:
        pytest.skip("needs nvcc and compute-sanitizer")
    output = tmp_path_factory.mktemp("sanitizer") / "case"
    headers = f"-I{PACKAGE / 'nvfp4_sparse_mla' / 'csrc'}"
    target = ["-gencode=arch=compute_90a,code=sm_90a", "-DPRIME_SANITIZED", "-lineinfo", "-std=c++17", "-O3"]
    subprocess.run([nvcc, *target, headers, str(CASE), *map(str, SOURCES), "-o", str(output)], check=True)
    return output


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "synccheck", "initcheck"])
def test_the_sanitizer_finds_nothing(gpu: str, case: Path, tool: str) -> None:
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", str(case)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "every kernel ran" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout
