"""The two cache row formats, byte by byte, and what the bytes mean.

NVFP4 row, 352 bytes (vLLM's `nvfp4_ds_mla`):
    0..255    512 E2M1 values, element 2i in the low nibble of byte i
    256..319  64 positional values, E4M3, unscaled
    320..351  32 E4M3 scales, one per block of 16 values; block b lies at 320 + 8 * (b % 4) + b // 4
FP8 row, 576 bytes: 512 E4M3 values, then 64 E4M3 positional values, both unscaled.
"""

import torch

LATENT_DIM = 512
ROPE_DIM = 64
QUERY_DIM = LATENT_DIM + ROPE_DIM

SCALE_BLOCK = 16
"""Values that share one scale: what NVFP4 fixes."""

SCALE_BLOCKS = LATENT_DIM // SCALE_BLOCK

NVFP4_ROW_BYTES = 352
FP8_ROW_BYTES = 576
ROPE_OFFSET_BYTES = 256
SCALE_OFFSET_BYTES = 320

E2M1_MAX = 6.0
E4M3_MAX = 448.0
E4M3_TINY = 2.0**-9
"""Smallest positive E4M3 value: a scale is never below it, so its reciprocal is finite."""

E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def scale_byte(block: int) -> int:
    """Where a block's scale lies in a row. Blocks of one residue mod 4 are neighbours: one lane of a tensor-core
    fragment owns exactly those, and reads its eight scales at once."""
    return SCALE_OFFSET_BYTES + 8 * (block % 4) + block // 4


def scale_bytes() -> list[int]:
    return [scale_byte(block) for block in range(SCALE_BLOCKS)]


def dequantize(rows: torch.Tensor, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Rows of either format ([..., 352] or [..., 576] bytes) as [..., 576] numbers, exactly."""
    if rows.dtype != torch.uint8:
        raise ValueError(f"rows must be uint8, got {rows.dtype}")
    if rows.shape[-1] == FP8_ROW_BYTES:
        return rows.contiguous().view(torch.float8_e4m3fn).to(dtype)
    if rows.shape[-1] != NVFP4_ROW_BYTES:
        raise ValueError(f"a row has {NVFP4_ROW_BYTES} (NVFP4) or {FP8_ROW_BYTES} (FP8) bytes, got {rows.shape[-1]}")
    packed = rows[..., :ROPE_OFFSET_BYTES]
    codes = torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)
    signed = torch.tensor([*E2M1_MAGNITUDES, *(-value for value in E2M1_MAGNITUDES)], dtype=dtype, device=rows.device)
    values = signed[codes.long()]
    scales = rows[..., scale_bytes()].contiguous().view(torch.float8_e4m3fn).to(dtype)
    latent = values * scales.repeat_interleave(SCALE_BLOCK, dim=-1)
    rope = rows[..., ROPE_OFFSET_BYTES:SCALE_OFFSET_BYTES].contiguous().view(torch.float8_e4m3fn).to(dtype)
    return torch.cat((latent, rope), dim=-1)
