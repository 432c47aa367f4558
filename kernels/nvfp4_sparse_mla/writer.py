"""Quantising to cache rows: the model that the CUDA writer matches bit for bit, and the path for CPU tensors.

One block of 16 values x: scale = E4M3(max(amax / 6, 2^-9)), code = E2M1(x * (1 / scale)). Both roundings are to
nearest, ties to even, and saturate. Every step is one float32 operation, so that CPU and GPU agree on each bit.
A NaN does not count towards amax and is stored as +6 (what Blackwell's own conversion does); a NaN positional value
stays NaN.
"""

import torch

from .rows import (
    E2M1_MAX,
    E4M3_MAX,
    E4M3_TINY,
    FP8_ROW_BYTES,
    LATENT_DIM,
    NVFP4_ROW_BYTES,
    ROPE_DIM,
    ROPE_OFFSET_BYTES,
    SCALE_BLOCK,
    SCALE_BLOCKS,
    scale_bytes,
)

E2M1_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Halfway between neighbouring magnitudes."""


def to_e4m3(values: torch.Tensor) -> torch.Tensor:
    """Saturating E4M3; torch's own conversion turns what is too large into NaN."""
    return values.float().clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def to_e2m1(values: torch.Tensor) -> torch.Tensor:
    """Four-bit codes (sign in bit 3). Even codes take both their midpoints, which is ties-to-even."""
    magnitude = values.abs()
    code = torch.zeros_like(values, dtype=torch.uint8)
    for lower, midpoint in enumerate(E2M1_MIDPOINTS):
        above = magnitude > midpoint if lower % 2 == 0 else magnitude >= midpoint
        code += above.to(torch.uint8)
    code |= torch.signbit(values).to(torch.uint8) << 3
    return torch.where(values.isnan(), torch.tensor(7, dtype=torch.uint8, device=values.device), code)


def quantize_nvfp4(latent: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    """[N, 512] and [N, 64] numbers as [N, 352] bytes."""
    count = _checked_count(latent, rope)
    blocks = latent.float().view(count, SCALE_BLOCKS, SCALE_BLOCK)
    amax = torch.nan_to_num(blocks.abs(), nan=0.0, posinf=torch.inf).amax(dim=-1)
    scale_codes = to_e4m3((amax / E2M1_MAX).clamp(min=E4M3_TINY))
    reciprocal = 1.0 / scale_codes.view(torch.float8_e4m3fn).float()
    codes = to_e2m1(blocks * reciprocal[..., None]).view(count, LATENT_DIM)
    rows = torch.empty(count, NVFP4_ROW_BYTES, dtype=torch.uint8, device=latent.device)
    rows[:, :ROPE_OFFSET_BYTES] = codes[:, 0::2] | (codes[:, 1::2] << 4)
    rows[:, ROPE_OFFSET_BYTES : ROPE_OFFSET_BYTES + ROPE_DIM] = to_e4m3(rope)
    rows[:, scale_bytes()] = scale_codes
    return rows


def quantize_fp8(latent: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    """[N, 512] and [N, 64] numbers as [N, 576] E4M3 bytes, unscaled."""
    _checked_count(latent, rope)
    return torch.cat((to_e4m3(latent), to_e4m3(rope)), dim=-1)


def quantize(latent: torch.Tensor, rope: torch.Tensor, row_bytes: int) -> torch.Tensor:
    return quantize_fp8(latent, rope) if row_bytes == FP8_ROW_BYTES else quantize_nvfp4(latent, rope)


def _checked_count(latent: torch.Tensor, rope: torch.Tensor) -> int:
    if latent.ndim != 2 or latent.shape[1] != LATENT_DIM:
        raise ValueError(f"latent must be [N, {LATENT_DIM}], got {tuple(latent.shape)}")
    if tuple(rope.shape) != (latent.shape[0], ROPE_DIM):
        raise ValueError(f"rope must be [{latent.shape[0]}, {ROPE_DIM}], got {tuple(rope.shape)}")
    return int(latent.shape[0])
