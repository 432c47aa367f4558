"""The row formats, byte by byte."""

import pytest
import torch
from prime_kernels.nvfp4_sparse_mla import rows
from prime_kernels.nvfp4_sparse_mla.writer import quantize_fp8, quantize_nvfp4


def test_every_byte_of_a_row_has_one_meaning() -> None:
    scale_bytes = rows.scale_bytes()
    assert sorted(scale_bytes) == list(range(320, 352))
    assert rows.LATENT_DIM // 2 == rows.ROPE_OFFSET_BYTES == 256
    assert rows.ROPE_OFFSET_BYTES + rows.ROPE_DIM == rows.SCALE_OFFSET_BYTES == 320
    assert rows.SCALE_OFFSET_BYTES + rows.SCALE_BLOCKS == rows.NVFP4_ROW_BYTES == 352
    assert rows.LATENT_DIM + rows.ROPE_DIM == rows.FP8_ROW_BYTES == 576


def test_element_2i_lies_in_the_low_nibble_of_byte_i() -> None:
    row = torch.zeros(1, 352, dtype=torch.uint8)
    row[0, 320:] = 0x38  # 1.0
    row[0, 5] = 0xA3  # high nibble 10: -1.0, low nibble 3: 1.5
    values = rows.dequantize(row)[0]
    assert values[10] == 1.5
    assert values[11] == -1.0
    assert values.count_nonzero() == 2


def test_block_b_takes_its_scale_from_byte_320_plus_8_times_b_mod_4_plus_b_div_4() -> None:
    """32 blocks of different size: a writer or reader with any other order mixes them up (vllm#50084)."""
    latent = (torch.arange(32) + 1.0).repeat_interleave(16)[None] * 6
    row = quantize_nvfp4(latent, torch.zeros(1, 64))
    for block in range(32):
        code = row[0, 320 + 8 * (block % 4) + block // 4]
        assert code.view(torch.float8_e4m3fn).float() == torch.tensor(block + 1.0).to(torch.float8_e4m3fn).float()


def test_every_code_times_every_scale_is_dequantised_exactly() -> None:
    """Also what lets the kernel work in fp16: each product, divided by 64, is an fp16 value."""
    scales = torch.arange(127, dtype=torch.uint8)
    table = torch.zeros(127, 352, dtype=torch.uint8)
    table[:, :8] = torch.tensor([0x10, 0x32, 0x54, 0x76, 0x98, 0xBA, 0xDC, 0xFE], dtype=torch.uint8)
    table[:, 320] = scales
    values = rows.dequantize(table)[:, :16]
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    codes = torch.tensor(magnitudes + [-value for value in magnitudes], dtype=torch.float64)
    expected = scales.view(torch.float8_e4m3fn).double()[:, None] * codes
    assert torch.equal(values, expected)
    assert torch.equal((values / 64).half().double() * 64, expected)


def test_positional_values_are_e4m3_without_a_scale() -> None:
    rope = torch.linspace(-448, 448, 64)[None]
    row = quantize_nvfp4(torch.full((1, 512), 100.0), rope)
    assert torch.equal(row[0, 256:320], rope.to(torch.float8_e4m3fn).view(torch.uint8)[0])
    assert torch.equal(rows.dequantize(row)[0, 512:], rope.to(torch.float8_e4m3fn).double()[0])


def test_fp8_rows_are_576_values_without_scales() -> None:
    latent, rope = torch.randn(3, 512), torch.randn(3, 64)
    expected = torch.cat((latent, rope), dim=-1).to(torch.float8_e4m3fn).double()
    assert torch.equal(rows.dequantize(quantize_fp8(latent, rope)), expected)


def test_rows_of_another_size_or_type_are_refused() -> None:
    with pytest.raises(ValueError, match="352"):
        rows.dequantize(torch.zeros(1, 656, dtype=torch.uint8))
    with pytest.raises(ValueError, match="uint8"):
        rows.dequantize(torch.zeros(1, 352))
