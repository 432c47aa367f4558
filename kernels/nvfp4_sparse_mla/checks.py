"""Everything a call must satisfy, checked before anything is launched. All refusals are ValueErrors."""

import torch

from .rows import FP8_ROW_BYTES, LATENT_DIM, NVFP4_ROW_BYTES, ROPE_DIM

MAX_HEADS = 128
"""Query heads of one rank: DeepSeek-V3.2 without tensor parallelism."""

COPY_ALIGNMENT_BYTES = 16
"""A bulk copy moves whole 16-byte units between 16-byte boundaries."""

MAX_CACHE_BYTES = 2**36
"""The kernel counts addresses in 16-byte units, in 32 bits."""

MAX_TOKENS = 65_535
"""Query tokens of one launch: a grid's third dimension."""

MAX_ROWS = 2**31 - 1
"""Indices are int32."""


def check_cache(cache: torch.Tensor) -> None:
    if cache.ndim != 3 or cache.dtype != torch.uint8:
        raise ValueError(f"cache must be uint8 [blocks, block_size, row bytes], got {cache.dtype} {tuple(cache.shape)}")
    if cache.shape[2] not in (NVFP4_ROW_BYTES, FP8_ROW_BYTES):
        raise ValueError(
            f"a cache row has {NVFP4_ROW_BYTES} (NVFP4) or {FP8_ROW_BYTES} (FP8) bytes, got {cache.shape[2]}"
        )
    if cache.shape[0] < 1 or cache.shape[1] < 1:
        raise ValueError(f"cache has no rows: {tuple(cache.shape)}")
    if cache.shape[0] * cache.shape[1] > MAX_ROWS:
        raise ValueError(f"cache has more than {MAX_ROWS} rows, the most that int32 indices reach")
    span = (cache.shape[0] - 1) * cache.stride(0) + (cache.shape[1] - 1) * cache.stride(1) + cache.shape[2]
    if span > MAX_CACHE_BYTES:
        raise ValueError(f"the cache spans {span} bytes, more than {MAX_CACHE_BYTES}")
    if cache.stride(2) != 1:
        raise ValueError("the bytes of a cache row must be neighbours (stride 1 in the last dimension)")
    if cache.shape[1] > 1 and cache.stride(1) < cache.shape[2]:
        raise ValueError(f"cache rows overlap: row stride {cache.stride(1)} is below the row's {cache.shape[2]} bytes")
    for name, stride in (("block", cache.stride(0)), ("row", cache.stride(1))):
        if stride % COPY_ALIGNMENT_BYTES:
            raise ValueError(
                f"the cache's {name} stride must be a multiple of {COPY_ALIGNMENT_BYTES} bytes, got {stride}"
            )
    if cache.data_ptr() % COPY_ALIGNMENT_BYTES:
        raise ValueError(f"the cache must start at a multiple of {COPY_ALIGNMENT_BYTES} bytes")


def check_indices(indices: torch.Tensor, tokens: int, device: torch.device) -> None:
    if indices.ndim != 2 or indices.shape[0] != tokens:
        raise ValueError(f"indices must be [{tokens}, topk], got {tuple(indices.shape)}")
    if indices.dtype != torch.int32:
        raise ValueError(f"indices must be int32, got {indices.dtype}")
    if indices.shape[1] < 1:
        raise ValueError("topk must be at least 1")
    if indices.shape[1] > 1 and indices.stride(1) != 1:
        raise ValueError("the indices of one token must be neighbours (stride 1 in the last dimension)")
    if indices.device != device:
        raise ValueError(f"indices are on {indices.device}, the cache on {device}")


def check_query(q_latent: torch.Tensor, q_rope: torch.Tensor, device: torch.device) -> None:
    if q_latent.ndim != 3 or q_latent.shape[2] != LATENT_DIM:
        raise ValueError(f"q_latent must be [tokens, heads, {LATENT_DIM}], got {tuple(q_latent.shape)}")
    tokens, heads = q_latent.shape[:2]
    if tuple(q_rope.shape) != (tokens, heads, ROPE_DIM):
        raise ValueError(f"q_rope must be [{tokens}, {heads}, {ROPE_DIM}], got {tuple(q_rope.shape)}")
    if tokens > MAX_TOKENS:
        raise ValueError(f"one launch takes at most {MAX_TOKENS} tokens, got {tokens}")
    if not 1 <= heads <= MAX_HEADS:
        raise ValueError(f"heads must be 1..{MAX_HEADS}, got {heads}")
    if q_latent.dtype not in (torch.bfloat16, torch.float16) or q_rope.dtype != q_latent.dtype:
        raise ValueError(
            f"q_latent and q_rope must both be bfloat16 or float16, got {q_latent.dtype} and {q_rope.dtype}"
        )
    for name, part in (("q_latent", q_latent), ("q_rope", q_rope)):
        if part.device != device:
            raise ValueError(f"{name} is on {part.device}, the cache on {device}")
        if part.stride(2) != 1:
            raise ValueError(f"the values of one head of {name} must be neighbours (stride 1 in the last dimension)")
        # Loads are 16 bytes wide: 8 values.
        if part.stride(0) % 8 or part.stride(1) % 8 or part.data_ptr() % COPY_ALIGNMENT_BYTES:
            raise ValueError(
                f"{name}: token and head strides must be multiples of 8 values and the start 16-byte aligned"
            )


def check_result(out: torch.Tensor, lse: torch.Tensor, tokens: int, heads: int, device: torch.device) -> None:
    if out.dtype != torch.bfloat16 or tuple(out.shape) != (tokens, heads, LATENT_DIM) or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous bfloat16 [{tokens}, {heads}, {LATENT_DIM}], got {out.dtype} {tuple(out.shape)}"
        )
    if lse.dtype != torch.float32 or tuple(lse.shape) != (tokens, heads) or not lse.is_contiguous():
        raise ValueError(f"lse must be contiguous float32 [{tokens}, {heads}], got {lse.dtype} {tuple(lse.shape)}")
    if out.device != device or lse.device != device:
        raise ValueError(f"out and lse must be on {device}, got {out.device} and {lse.device}")


def check_write(latent: torch.Tensor, rope: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    if latent.ndim != 2 or latent.shape[1] != LATENT_DIM:
        raise ValueError(f"latent must be [N, {LATENT_DIM}], got {tuple(latent.shape)}")
    count = latent.shape[0]
    if tuple(rope.shape) != (count, ROPE_DIM):
        raise ValueError(f"rope must be [{count}, {ROPE_DIM}], got {tuple(rope.shape)}")
    if latent.dtype != torch.bfloat16 or rope.dtype != torch.bfloat16:
        raise ValueError(f"latent and rope must be bfloat16, got {latent.dtype} and {rope.dtype}")
    if slots.dtype != torch.int64 or tuple(slots.shape) != (count,) or not slots.is_contiguous():
        raise ValueError(f"slots must be contiguous int64 [{count}], got {slots.dtype} {tuple(slots.shape)}")
    if latent.stride(1) != 1 or latent.stride(0) % 8 or latent.data_ptr() % COPY_ALIGNMENT_BYTES:
        raise ValueError(
            "latent: values must be neighbours, the row stride a multiple of 8 and the start 16-byte aligned"
        )
    if rope.stride(1) != 1 or rope.stride(0) % 2 or rope.data_ptr() % 4:
        raise ValueError("rope: values must be neighbours, the row stride a multiple of 2 and the start 4-byte aligned")
    for name, part in (("latent", latent), ("rope", rope), ("slots", slots)):
        if part.device != cache.device:
            raise ValueError(f"{name} is on {part.device}, the cache on {cache.device}")
