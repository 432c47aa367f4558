"""Quantising: the model that the CUDA writer matches bit for bit."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from prime_kernels.nvfp4_sparse_mla import write_rows
from prime_kernels.nvfp4_sparse_mla.rows import E2M1_MAGNITUDES, dequantize, scale_bytes
from prime_kernels.nvfp4_sparse_mla.writer import quantize, quantize_nvfp4, to_e2m1, to_e4m3
from prime_kernels.testing.comparison import relative_l2
from prime_kernels.testing.generators import POISON, random_rows


@given(st.floats(-8, 8, width=32))
def test_a_code_is_the_nearest_value_and_ties_go_to_the_even_code(value: float) -> None:
    code = int(to_e2m1(torch.tensor([value]))[0])
    distances = [abs(abs(value) - magnitude) for magnitude in E2M1_MAGNITUDES]
    nearest = [index for index, distance in enumerate(distances) if distance == min(distances)]
    chosen = nearest[0] if len(nearest) == 1 or nearest[0] % 2 == 0 else nearest[1]
    assert code & 7 == chosen
    assert bool(code & 8) == bool(torch.signbit(torch.tensor(value)))


@pytest.mark.parametrize("lower", range(7))
def test_each_midpoint_goes_to_the_even_code(lower: int) -> None:
    midpoint = (E2M1_MAGNITUDES[lower] + E2M1_MAGNITUDES[lower + 1]) / 2
    even = lower if lower % 2 == 0 else lower + 1
    assert to_e2m1(torch.tensor([midpoint, -midpoint])).tolist() == [even, even + 8]


def test_conversion_to_e4m3_saturates_where_torchs_gives_nan() -> None:
    assert to_e4m3(torch.tensor([1e9, -torch.inf])).view(torch.float8_e4m3fn).tolist() == [448.0, -448.0]


@given(st.lists(st.floats(-2000, 2000, width=32), min_size=16, max_size=16))
def test_no_value_moves_further_than_one_scale(block: list[float]) -> None:
    """Neighbouring magnitudes are at most 2 apart; a scale rounded down saturates by less than half of that."""
    latent = torch.zeros(1, 512)
    latent[0, :16] = torch.tensor(block)
    row = quantize_nvfp4(latent, torch.zeros(1, 64))
    scale = float(row[0, 320].view(torch.float8_e4m3fn).float())
    assert (dequantize(row)[0, :16] - latent[0, :16].double()).abs().max() <= scale


def test_normal_values_lose_a_tenth_and_a_wrong_scale_order_shows() -> None:
    latent, rope = random_rows(200, torch.Generator().manual_seed(0), torch.device("cpu"))
    row = quantize_nvfp4(latent, rope)
    assert relative_l2(dequantize(row)[:, :512], latent) <= 0.12
    shuffled = row.clone()
    shuffled[:, 320:] = row[:, scale_bytes()]  # block b's scale at byte 320 + b
    assert relative_l2(dequantize(shuffled)[:, :512], latent) >= 0.5


def test_zeros_stay_zeros_under_the_smallest_scale() -> None:
    row = quantize_nvfp4(torch.zeros(1, 512), torch.zeros(1, 64))
    assert row[0, 320:].unique().tolist() == [1]
    assert dequantize(row).count_nonzero() == 0


def test_infinities_saturate_and_nan_is_stored_as_the_largest_value() -> None:
    latent = torch.zeros(1, 512)
    latent[0, 0], latent[0, 1] = torch.inf, -torch.inf
    latent[0, 16], latent[0, 17] = torch.nan, 3.0
    values = dequantize(quantize_nvfp4(latent, torch.zeros(1, 64)))[0]
    assert values[:2].tolist() == [2688.0, -2688.0]
    assert values[16:18].tolist() == [3.0, 3.0]


@pytest.mark.parametrize("row_bytes", [352, 576])
def test_rows_land_in_their_slots_and_nothing_else_is_touched(row_bytes: int) -> None:
    latent, rope = random_rows(20, torch.Generator().manual_seed(1), torch.device("cpu"))
    layers = torch.full((5, 3, 8, row_bytes), POISON, dtype=torch.uint8)
    slots = torch.randperm(40, generator=torch.Generator().manual_seed(2))[:20]
    slots[::4] = -1
    slots[1] = 40  # not a row of this cache
    expected = layers.clone()
    kept = (slots >= 0) & (slots < 40)
    expected[slots[kept] // 8, 1, slots[kept] % 8] = quantize(latent, rope, row_bytes)[kept]
    write_rows(latent, rope, layers[:, 1], slots)
    assert torch.equal(layers, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"latent": torch.zeros(4, 500, dtype=torch.bfloat16)}, "latent must be"),
        ({"rope": torch.zeros(3, 64, dtype=torch.bfloat16)}, "rope must be"),
        ({"latent": torch.zeros(4, 512)}, "bfloat16"),
        ({"slots": torch.zeros(4, dtype=torch.int32)}, "slots must be"),
        ({"slots": torch.zeros(5, dtype=torch.int64)}, "slots must be"),
        ({"latent": torch.zeros(4, 513, dtype=torch.bfloat16)[:, 1:]}, "16-byte aligned"),
        ({"cache": torch.zeros(2, 8, 656, dtype=torch.uint8)}, "a cache row has"),
        ({"cache": torch.zeros(2, 8, 352)}, "cache must be uint8"),
    ],
)
def test_a_write_that_cannot_work_is_refused(change: dict[str, torch.Tensor], message: str) -> None:
    call = {
        "latent": torch.zeros(4, 512, dtype=torch.bfloat16),
        "rope": torch.zeros(4, 64, dtype=torch.bfloat16),
        "cache": torch.zeros(2, 8, 352, dtype=torch.uint8),
        "slots": torch.arange(4),
    }
    with pytest.raises(ValueError, match=message):
        write_rows(**{**call, **change})
