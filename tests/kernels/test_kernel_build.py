"""The C library: its structs as Python sees them, and, where nvcc is present, what it compiles to."""

import ctypes
import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
from prime_kernels.build import ARCHITECTURES, PACKAGE, build, find_nvcc
from prime_kernels.nvfp4_sparse_mla import library

pytestmark = pytest.mark.slow

CSRC = PACKAGE / "nvfp4_sparse_mla" / "csrc"

STRUCTS = {
    "PrimeCache": library.Cache,
    "PrimeDecode": library.Decode,
    "PrimeWrite": library.Write,
    "PrimeUnpack": library.Unpack,
}


def cuobjdump() -> str | None:
    """On PATH, or the one that Triton's package carries."""
    spec = importlib.util.find_spec("triton")
    carried = Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "cuobjdump" if spec and spec.origin else None
    return shutil.which("cuobjdump") or (str(carried) if carried and carried.is_file() else None)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_every_struct_has_the_same_layout_in_c_and_in_python(tmp_path: Path) -> None:
    lines = ["#include <stddef.h>", "#include <stdio.h>", f'#include "{CSRC / "params.h"}"', "int main(void) {"]
    expected = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        expected.append(f"{name} {ctypes.sizeof(struct)}")
        for field, *_ in struct._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof(struct {name}, {field}));')
            expected.append(f"{name}.{field} {getattr(struct, field).offset}")
    source = tmp_path / "layout.c"
    source.write_text("\n".join([*lines, "return 0; }"]))
    subprocess.run(["cc", str(source), "-o", str(tmp_path / "layout")], check=True)
    printed = subprocess.run([str(tmp_path / "layout")], check=True, capture_output=True, text=True).stdout
    assert printed.split("\n")[:-1] == expected


def test_a_missing_library_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(library.LIBRARY_VARIABLE, str(tmp_path / "absent.so"))
    library.load.cache_clear()
    with pytest.raises(RuntimeError, match=r"absent\.so: run `python -m prime_kernels\.build`"):
        library.load()
    library.load.cache_clear()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_nvcc() is None:
        pytest.skip("needs nvcc")
    return build(tmp_path_factory.mktemp("library") / "libprime_kernels.so")


def test_the_library_loads_and_offers_every_function(built: Path) -> None:
    functions = ctypes.CDLL(str(built))
    for name in ("prime_decode", "prime_decode_prepare", "prime_write_rows", "prime_unpack_rows", "prime_error_text"):
        assert getattr(functions, name)
    assert functions.prime_compiler_version() >= 13000
    assert not library.offers_parts(functions)  # those are the benchmark's


def test_a_library_for_the_benchmark_offers_the_parts_as_well(tmp_path: Path) -> None:
    if find_nvcc() is None:
        pytest.skip("needs nvcc")
    functions = ctypes.CDLL(str(build(tmp_path / "parts.so", ["90a"], parts=True)))
    assert library.offers_parts(functions)
    assert functions.prime_decode


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_machine_code_is_what_the_design_asks_for(built: Path, architecture: str) -> None:
    tool = cuobjdump()
    if tool is None:
        pytest.skip("needs cuobjdump")
    listing = subprocess.run(
        [tool, "--dump-sass", "-arch", f"sm_{architecture}", str(built)], check=True, capture_output=True, text=True
    ).stdout
    assert "decode_kernel" in listing
    # Tensor cores, asynchronous gather, distributed shared memory.
    for instruction in ("HMMA.16816.F32", "LDSM", "LDGSTS", "STAS", "UCGABAR_ARV"):
        assert instruction in listing, instruction
    # Blackwell converts E2M1 by itself; Hopper goes through E4M3.
    assert ("E2M1" in listing) == (architecture != "90a")
