"""The C library through ctypes. The structs mirror csrc/params.h field by field; a test compares their sizes."""

import ctypes
import functools
import os
from pathlib import Path

LIBRARY_VARIABLE = "PRIME_KERNELS_LIBRARY"
"""Path of the built library, where it does not lie in this package's build folder."""

BUILT_LIBRARY = Path(__file__).resolve().parent.parent / "build" / "libprime_kernels.so"

MAX_CLUSTER = 8
"""Thread blocks in the largest cluster that every device can run (CUDA's portable limit)."""


class Cache(ctypes.Structure):
    _fields_ = [
        ("base", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("block_stride", ctypes.c_int64),
        ("row_stride", ctypes.c_int64),
        ("block_size", ctypes.c_int32),
        ("row_bytes", ctypes.c_int32),
    ]


class Decode(ctypes.Structure):
    _fields_ = [
        ("cache", Cache),
        ("q_latent", ctypes.c_void_p),
        ("q_rope", ctypes.c_void_p),
        ("indices", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("lse", ctypes.c_void_p),
        ("q_latent_strides", ctypes.c_int64 * 2),
        ("q_rope_strides", ctypes.c_int64 * 2),
        ("indices_stride", ctypes.c_int64),
        ("tokens", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("topk", ctypes.c_int32),
        ("query_is_half", ctypes.c_int32),
        ("softmax_scale", ctypes.c_float),
        ("cluster_size", ctypes.c_int32),
        ("early_launch", ctypes.c_int32),
        ("stages_each", ctypes.c_int32),
        ("stages_over", ctypes.c_int32),
    ]


class Write(ctypes.Structure):
    _fields_ = [
        ("cache", Cache),
        ("latent", ctypes.c_void_p),
        ("rope", ctypes.c_void_p),
        ("slots", ctypes.c_void_p),
        ("latent_stride", ctypes.c_int64),
        ("rope_stride", ctypes.c_int64),
        ("count", ctypes.c_int32),
    ]


class Unpack(ctypes.Structure):
    _fields_ = [
        ("cache", Cache),
        ("indices", ctypes.c_void_p),
        ("indices_stride", ctypes.c_int64),
        ("rows", ctypes.c_void_p),
        ("positions", ctypes.c_void_p),
        ("tokens", ctypes.c_int32),
        ("topk", ctypes.c_int32),
    ]


@functools.cache
def load() -> ctypes.CDLL:
    path = Path(os.environ.get(LIBRARY_VARIABLE) or BUILT_LIBRARY)
    if not path.is_file():
        raise RuntimeError(
            f"no kernel library at {path}: run `python -m prime_kernels.build`, or set {LIBRARY_VARIABLE}"
        )
    library = ctypes.CDLL(str(path))
    library.prime_decode_prepare.argtypes = [ctypes.POINTER(ctypes.c_int32)]
    library.prime_decode.argtypes = [ctypes.POINTER(Decode), ctypes.c_void_p]
    if offers_parts(library):
        library.prime_decode_part.argtypes = [ctypes.POINTER(Decode), ctypes.c_int32, ctypes.c_void_p]
    library.prime_write_rows.argtypes = [ctypes.POINTER(Write), ctypes.c_void_p]
    library.prime_unpack_rows.argtypes = [ctypes.POINTER(Unpack), ctypes.c_void_p]
    library.prime_error_text.argtypes = [ctypes.c_int]
    library.prime_error_text.restype = ctypes.c_char_p
    return library


def offers_parts(library: ctypes.CDLL) -> bool:
    """Whether it was built with the parts of the decode kernel that the benchmark times."""
    return hasattr(library, "prime_decode_part")


def check(code: int, action: str) -> None:
    if code:
        raise RuntimeError(f"{action} failed: {load().prime_error_text(code).decode()} (CUDA error {code})")


def cluster_capacity() -> tuple[int, ...]:
    """Readies the current device; entry c says how many clusters of c thread blocks run at once."""
    capacity = (ctypes.c_int32 * (MAX_CLUSTER + 1))()
    check(load().prime_decode_prepare(capacity), "preparing the decode kernel")
    return tuple(capacity)
