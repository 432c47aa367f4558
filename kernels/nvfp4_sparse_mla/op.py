"""The operations: `decode` (a torch custom op), `decode_into` for callers that own the outputs, `write_rows`, and
`unpack_rows`, the first step of the staged path. CUDA tensors go to the C library, CPU tensors to the float64
reference.

Call `prepare(device)` once before capturing a CUDA graph: it sets the kernels' shared-memory size and asks how many
clusters fit the device, neither of which may happen during capture.
"""

import ctypes

import torch

from . import library
from .checks import MAX_TOKENS, check_cache, check_indices, check_query, check_result, check_write
from .plan import CLUSTER_SIZES, choose_cluster
from .reference import decode_float64, gather_rows
from .rows import FP8_ROW_BYTES, LATENT_DIM, NVFP4_ROW_BYTES, dequantize
from .writer import quantize, to_e4m3

RUN_CAPABILITIES = frozenset({(9, 0)})
"""Architectures that the kernels have run on. Code for the others is compiled but never chosen without being asked."""

COMPILED_CAPABILITIES = frozenset({(9, 0), (10, 0), (10, 3)})

_capacity: dict[int, tuple[int, ...]] = {}


def prepare(device: torch.device, allow_unrun: bool = False) -> tuple[int, ...]:
    """Readies a device, once; entry c of the result says how many clusters of c thread blocks run at once."""
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in _capacity:
        if torch.cuda.is_current_stream_capturing():
            raise ValueError(
                "the first call may not be inside CUDA graph capture; call prepare(device) before capturing"
            )
        capability = torch.cuda.get_device_capability(index)
        if capability not in (COMPILED_CAPABILITIES if allow_unrun else RUN_CAPABILITIES):
            raise ValueError(
                f"device {index} has compute capability {capability}; the kernels have run on "
                f"{sorted(RUN_CAPABILITIES)} and are compiled for {sorted(COMPILED_CAPABILITIES)}: "
                "prepare(device, allow_unrun=True) tries those"
            )
        with torch.cuda.device(index):
            _capacity[index] = library.cluster_capacity()
    return _capacity[index]


def _cache_struct(cache: torch.Tensor) -> library.Cache:
    blocks, block_size, row_bytes = cache.shape
    return library.Cache(
        base=cache.data_ptr(),
        rows=blocks * block_size,
        block_stride=cache.stride(0),
        row_stride=cache.stride(1),
        block_size=block_size,
        row_bytes=row_bytes,
    )


def _stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream)


def decode_arguments(
    out: torch.Tensor,
    lse: torch.Tensor,
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    softmax_scale: float,
    cluster_size: int,
    early_launch: bool = False,
) -> library.Decode:
    """The C library's arguments of a call that has been checked."""
    return library.Decode(
        cache=_cache_struct(cache),
        q_latent=q_latent.data_ptr(),
        q_rope=q_rope.data_ptr(),
        indices=indices.data_ptr(),
        out=out.data_ptr(),
        lse=lse.data_ptr(),
        q_latent_strides=(ctypes.c_int64 * 2)(q_latent.stride(0), q_latent.stride(1)),
        q_rope_strides=(ctypes.c_int64 * 2)(q_rope.stride(0), q_rope.stride(1)),
        indices_stride=indices.stride(0),
        tokens=q_latent.shape[0],
        heads=q_latent.shape[1],
        topk=indices.shape[1],
        query_is_half=int(q_latent.dtype == torch.float16),
        softmax_scale=softmax_scale,
        early_launch=int(early_launch),
        cluster_size=cluster_size,
    )


def decode_into(
    out: torch.Tensor,
    lse: torch.Tensor,
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    softmax_scale: float,
    cluster_size: int = 0,
    early_launch: bool = False,
) -> None:
    """As `decode`, into given tensors. cluster_size 0 lets the planner choose; early_launch lets the kernel be set up
    while the one ahead of it in the stream still runs (programmatic dependent launch)."""
    device = cache.device
    check_cache(cache)
    check_query(q_latent, q_rope, device)
    tokens, heads = q_latent.shape[:2]
    check_indices(indices, tokens, device)
    check_result(out, lse, tokens, heads, device)
    if cluster_size not in (0, *CLUSTER_SIZES):
        raise ValueError(f"cluster_size must be 0 (automatic) or one of {CLUSTER_SIZES}, got {cluster_size}")
    if device.type != "cuda":
        exact, exact_lse = decode_float64(q_latent, q_rope, cache, indices, softmax_scale)
        out.copy_(exact)
        lse.copy_(exact_lse)
        return
    capacity = prepare(device)
    if tokens == 0:
        return
    cluster = cluster_size or choose_cluster(tokens, heads, indices.shape[1], capacity)
    args = decode_arguments(out, lse, q_latent, q_rope, cache, indices, softmax_scale, cluster, early_launch)
    with torch.cuda.device(device):
        library.check(library.load().prime_decode(ctypes.byref(args), _stream(device)), "launching the decode kernel")


def _decode(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    out, lse = _decode_fake(q_latent, q_rope, cache, indices, softmax_scale)
    decode_into(out, lse, q_latent, q_rope, cache, indices, softmax_scale)
    return out, lse


def _decode_fake(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, heads = q_latent.shape[:2]
    out = q_latent.new_empty((tokens, heads, LATENT_DIM), dtype=torch.bfloat16)
    return out, q_latent.new_empty((tokens, heads), dtype=torch.float32)


decode = torch.library.custom_op("prime_kernels::sparse_mla_decode", _decode, mutates_args=())
"""decode(q_latent [T, H, 512], q_rope [T, H, 64], cache [blocks, block_size, 352 or 576] uint8,
indices [T, topk] int32, softmax_scale) -> (out [T, H, 512] bfloat16, lse [T, H] float32, natural logarithm)."""
decode.register_fake(_decode_fake)


def write_rows(latent: torch.Tensor, rope: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Quantises row n of latent [N, 512] and rope [N, 64] into cache row slots[n]; skips slots outside the cache."""
    check_cache(cache)
    check_write(latent, rope, cache, slots)
    blocks, block_size, row_bytes = cache.shape
    if cache.device.type != "cuda":
        kept = (slots >= 0) & (slots < blocks * block_size)
        where = slots[kept]
        cache[where // block_size, where % block_size] = quantize(latent[kept], rope[kept], row_bytes)
        return
    prepare(cache.device)
    args = library.Write(
        cache=_cache_struct(cache),
        latent=latent.data_ptr(),
        rope=rope.data_ptr(),
        slots=slots.data_ptr(),
        latent_stride=latent.stride(0),
        rope_stride=rope.stride(0),
        count=latent.shape[0],
    )
    with torch.cuda.device(cache.device):
        library.check(
            library.load().prime_write_rows(ctypes.byref(args), _stream(cache.device)), "launching the writer"
        )


def unpack_rows(cache: torch.Tensor, indices: torch.Tensor, rows: torch.Tensor, positions: torch.Tensor) -> None:
    """Staged path, step one: row indices[t, k] of an NVFP4 cache becomes FP8 row t * topk + k of `rows`
    [1, T * topk, 576], and positions[t, k] its number, or -1 where nothing was selected."""
    check_cache(cache)
    tokens, topk = indices.shape
    check_indices(indices, tokens, cache.device)
    if cache.shape[2] != NVFP4_ROW_BYTES:
        raise ValueError(f"only NVFP4 rows ({NVFP4_ROW_BYTES} bytes) are unpacked, got {cache.shape[2]}")
    if tokens > MAX_TOKENS:
        raise ValueError(f"one launch takes at most {MAX_TOKENS} tokens, got {tokens}")
    if rows.dtype != torch.uint8 or tuple(rows.shape) != (1, tokens * topk, FP8_ROW_BYTES) or not rows.is_contiguous():
        raise ValueError(
            f"rows must be contiguous uint8 [1, {tokens * topk}, {FP8_ROW_BYTES}], got {tuple(rows.shape)}"
        )
    if positions.dtype != torch.int32 or positions.shape != indices.shape or not positions.is_contiguous():
        raise ValueError(f"positions must be contiguous int32 {tuple(indices.shape)}, got {tuple(positions.shape)}")
    if cache.device.type != "cuda":
        flat = indices.flatten().long()
        selected = (flat >= 0) & (flat < cache.shape[0] * cache.shape[1])
        rows[0, selected] = to_e4m3(dequantize(gather_rows(cache, flat[selected]), torch.float32))
        numbers = torch.arange(tokens * topk, dtype=torch.int32)
        positions.copy_(torch.where(selected, numbers, torch.tensor(-1, dtype=torch.int32)).view(tokens, topk))
        return
    prepare(cache.device)
    args = library.Unpack(
        cache=_cache_struct(cache),
        indices=indices.data_ptr(),
        indices_stride=indices.stride(0),
        rows=rows.data_ptr(),
        positions=positions.data_ptr(),
        tokens=tokens,
        topk=topk,
    )
    with torch.cuda.device(cache.device):
        library.check(
            library.load().prime_unpack_rows(ctypes.byref(args), _stream(cache.device)), "launching the unpacker"
        )
