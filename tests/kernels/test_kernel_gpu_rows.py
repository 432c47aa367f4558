"""Writer and unpacker on a GPU against their CPU models, and rows that lie beyond 2 and 4 GiB."""

import pytest
import torch
from prime_kernels.nvfp4_sparse_mla import decode_into, unpack_rows, write_rows
from prime_kernels.nvfp4_sparse_mla.reference import decode_float64
from prime_kernels.nvfp4_sparse_mla.rows import FP8_ROW_BYTES, LATENT_DIM, NVFP4_ROW_BYTES
from prime_kernels.nvfp4_sparse_mla.writer import quantize
from prime_kernels.testing.comparison import relative_l2
from prime_kernels.testing.generators import GLM_SOFTMAX_SCALE, POISON, random_inputs, random_query, random_rows

pytestmark = pytest.mark.gpu

FORMATS = (NVFP4_ROW_BYTES, FP8_ROW_BYTES)


@pytest.mark.parametrize("row_bytes", FORMATS)
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-3, 1.0, 60.0, 1e4, 1e38])
def test_written_rows_equal_the_models_bit_for_bit(gpu: str, row_bytes: int, size: float) -> None:
    generator = torch.Generator().manual_seed(int(size) % 1000)
    latent, rope = random_rows(5000, generator, torch.device("cpu"))
    latent, rope = (latent.float() * size).bfloat16(), (rope.float() * size).bfloat16()
    latent[0, :8] = torch.tensor([torch.inf, -torch.inf, 3.0, -0.0, 0.0, 5.0, -5.0, 2.5])
    if row_bytes == NVFP4_ROW_BYTES:
        latent[1, ::3] = torch.nan
    slots = torch.randperm(6000, generator=generator)[:5000]
    slots[::7] = -1
    expected = torch.full((6000, row_bytes), POISON, dtype=torch.uint8)
    expected[slots[slots >= 0]] = quantize(latent, rope, row_bytes)[slots >= 0]
    cache = torch.full((6000, 1, row_bytes), POISON, dtype=torch.uint8, device=gpu)
    write_rows(latent.cuda(), rope.cuda(), cache, slots.cuda())
    assert torch.equal(cache[:, 0].cpu(), expected)


def test_ties_are_written_as_the_model_rounds_them(gpu: str) -> None:
    """amax 6 gives scale 1, so every midpoint between two magnitudes is met exactly."""
    steps = torch.arange(-48, 49) / 8
    latent = torch.cat((torch.full((97, 1), 6.0), steps[:, None].expand(97, 15)), dim=1).repeat(1, 32).bfloat16()
    rope = torch.linspace(-500, 500, 97 * 64).view(97, 64).bfloat16()
    cache = torch.zeros(97, 1, NVFP4_ROW_BYTES, dtype=torch.uint8, device=gpu)
    write_rows(latent.cuda(), rope.cuda(), cache, torch.arange(97).cuda())
    assert torch.equal(cache[:, 0].cpu(), quantize(latent, rope, NVFP4_ROW_BYTES))


def test_the_writer_honours_block_strides_and_touches_nothing_else(gpu: str) -> None:
    latent, rope = random_rows(50, torch.Generator().manual_seed(1), torch.device("cpu"))
    layers = torch.full((10, 3, 8, NVFP4_ROW_BYTES), POISON, dtype=torch.uint8, device=gpu)
    slots = torch.randperm(80)[:50]
    expected = layers.cpu().clone()
    expected[slots // 8, 1, slots % 8] = quantize(latent, rope, NVFP4_ROW_BYTES)
    write_rows(latent.cuda(), rope.cuda(), layers[:, 1], slots.cuda())
    assert torch.equal(layers.cpu(), expected)


def test_unpacked_rows_equal_the_models(gpu: str) -> None:
    inputs = random_inputs(5, 16, 300)
    inputs.indices[:, ::5] = -1
    rows = {where: torch.zeros(1, 1500, FP8_ROW_BYTES, dtype=torch.uint8, device=where) for where in ("cpu", gpu)}
    positions = {where: torch.zeros(5, 300, dtype=torch.int32, device=where) for where in ("cpu", gpu)}
    for where in ("cpu", gpu):
        unpack_rows(inputs.cache.to(where), inputs.indices.to(where), rows[where], positions[where])
    assert torch.equal(rows[gpu].cpu(), rows["cpu"])
    assert torch.equal(positions[gpu].cpu(), positions["cpu"])


@pytest.mark.slow
@pytest.mark.parametrize("row_bytes", FORMATS)
def test_rows_beyond_2_and_4_gib_are_written_and_read(gpu: str, row_bytes: int) -> None:
    count = 2**32 // row_bytes + 1000
    cache = torch.full((count, 1, row_bytes), POISON, dtype=torch.uint8, device=gpu)
    slots = torch.tensor([0, 1, 2**31 // row_bytes - 1, 2**31 // row_bytes, 2**31 // row_bytes + 1, 2**32 // row_bytes,
                          2**32 // row_bytes + 1, count - 1], device=gpu)  # fmt: skip
    latent, rope = random_rows(8, torch.Generator().manual_seed(3), torch.device("cpu"))
    write_rows(latent.cuda(), rope.cuda(), cache, slots)
    assert torch.equal(cache[slots, 0].cpu(), quantize(latent, rope, row_bytes))
    generator = torch.Generator(device=gpu).manual_seed(4)
    q_latent, q_rope = random_query(2, 16, generator, torch.device(gpu))
    indices = slots.int().repeat(2, 1)
    out = torch.empty(2, 16, LATENT_DIM, dtype=torch.bfloat16, device=gpu)
    lse = torch.empty(2, 16, device=gpu)
    decode_into(out, lse, q_latent, q_rope, cache, indices, GLM_SOFTMAX_SCALE)
    expected, _ = decode_float64(q_latent, q_rope, cache, indices, GLM_SOFTMAX_SCALE)
    assert relative_l2(out, expected) <= 4e-3
