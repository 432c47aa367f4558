"""Compiles the C library with nvcc: `python -m prime_kernels.build`. No torch header is included, so one library serves
every torch.

The library holds machine code for exactly the listed architectures and no PTX: Hopper and Blackwell kernels use
instructions that no other architecture has, so there is nothing for a driver to compile.
"""

import argparse
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
SOURCES = tuple(sorted((PACKAGE / "nvfp4_sparse_mla" / "csrc").glob("*.cu")))
LIBRARY = PACKAGE / "build" / "libprime_kernels.so"

ARCHITECTURES = ("90a", "100a", "103a")
"""Hopper, then Blackwell (GB200, B300). Only the first has been run; see README.md."""


def find_nvcc() -> str | None:
    """`NVCC`, or nvcc on PATH."""
    return os.environ.get("NVCC") or shutil.which("nvcc")


def nvcc_command(
    nvcc: str, output: Path, architectures: Sequence[str] = ARCHITECTURES, parts: bool = False
) -> list[str]:
    codes = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in architectures]
    return [
        nvcc,
        "-std=c++17",
        "-O3",
        "-shared",
        "-Xcompiler",
        "-fPIC,-fvisibility=default",
        *codes,
        *(["-DPRIME_PARTS"] if parts else []),
        *map(str, SOURCES),
        "-o",
        str(output),
    ]


def build(output: Path = LIBRARY, architectures: Sequence[str] = ARCHITECTURES, parts: bool = False) -> Path:
    nvcc = find_nvcc()
    if nvcc is None:
        raise RuntimeError("no nvcc on PATH; install CUDA 13.0 or newer, or set NVCC to the compiler's path")
    output.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(nvcc_command(nvcc, output, architectures, parts), check=True)
    return output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", action="append", choices=ARCHITECTURES, help="build for this one only; may repeat")
    parser.add_argument("--output", type=Path, default=LIBRARY)
    parser.add_argument("--parts", action="store_true", help="with parts of the decode kernel, for the benchmark")
    arguments = parser.parse_args()
    print(build(arguments.output, arguments.arch or ARCHITECTURES, arguments.parts))


if __name__ == "__main__":
    main()
