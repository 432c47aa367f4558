"""The operation on CPU tensors: the float64 reference, the op's registration, the staged path and every refusal."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from prime_kernels.nvfp4_sparse_mla import decode, decode_into, unpack_rows
from prime_kernels.nvfp4_sparse_mla.checks import check_cache
from prime_kernels.nvfp4_sparse_mla.reference import decode_float64
from prime_kernels.nvfp4_sparse_mla.rows import FP8_ROW_BYTES, LATENT_DIM, NVFP4_ROW_BYTES, dequantize
from prime_kernels.testing.comparison import relative_l2
from prime_kernels.testing.generators import (
    GLM_SOFTMAX_SCALE,
    POISON,
    Inputs,
    random_inputs,
    request_indices,
)


def run(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    return decode_float64(inputs.q_latent, inputs.q_rope, inputs.cache, inputs.indices, GLM_SOFTMAX_SCALE)


@pytest.mark.parametrize("row_bytes", [NVFP4_ROW_BYTES, FP8_ROW_BYTES])
def test_the_reference_is_attention_over_the_selected_rows(row_bytes: int) -> None:
    inputs = random_inputs(3, 4, 50, rows=256, row_bytes=row_bytes)
    out, lse = run(inputs)
    for token in range(3):
        keys = dequantize(inputs.cache.view(-1, row_bytes)[inputs.indices[token].long()])
        query = torch.cat((inputs.q_latent[token], inputs.q_rope[token]), dim=-1).double()
        expected = torch.nn.functional.scaled_dot_product_attention(
            query[None], keys[None].expand(1, -1, -1), keys[None, :, :LATENT_DIM], scale=GLM_SOFTMAX_SCALE
        )[0]
        torch.testing.assert_close(out[token], expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(lse[token], (GLM_SOFTMAX_SCALE * query @ keys.T).exp().sum(-1).log())


@settings(max_examples=20)
@given(st.permutations(range(12)), st.lists(st.integers(0, 12), max_size=6))
def test_padding_and_order_change_nothing(order: list[int], holes: list[int]) -> None:
    inputs = random_inputs(1, 2, 12, rows=64)
    out, lse = run(inputs)
    shuffled = [int(inputs.indices[0, place]) for place in order]
    for hole in holes:
        shuffled.insert(hole, -1)
    padded = Inputs(inputs.q_latent, inputs.q_rope, inputs.cache, torch.tensor([shuffled], dtype=torch.int32))
    again, lse_again = run(padded)
    torch.testing.assert_close(again, out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse_again, lse, rtol=1e-12, atol=1e-12)


def test_a_token_that_selects_nothing_gives_zeros_and_minus_infinity() -> None:
    inputs = random_inputs(2, 4, 8)
    inputs.indices[0] = -1
    out, lse = run(inputs)
    assert out[0].count_nonzero() == 0
    assert (lse[0] == -torch.inf).all()
    assert out[1].count_nonzero() > 0


def test_a_row_selected_twice_counts_twice() -> None:
    inputs = random_inputs(1, 2, 2)
    twice = Inputs(inputs.q_latent, inputs.q_rope, inputs.cache, inputs.indices[:, [0, 0, 1]])
    _, once = run(Inputs(inputs.q_latent, inputs.q_rope, inputs.cache, inputs.indices[:, [0, 1]]))
    _, lse = run(twice)
    assert (lse > once).all()


def test_rows_that_are_not_selected_may_hold_anything() -> None:
    inputs = random_inputs(2, 4, 20, rows=256)
    inputs.indices[:, 5:8] = -1
    inputs.indices[:, 8] = 10_000
    expected, _ = run(inputs)
    flat = inputs.cache.view(-1, NVFP4_ROW_BYTES)
    chosen = inputs.indices[(inputs.indices >= 0) & (inputs.indices < flat.shape[0])].long()
    keep = flat[chosen].clone()
    flat.fill_(POISON)
    flat[chosen] = keep
    out, _ = run(inputs)
    assert torch.equal(out, expected)


def test_the_op_on_cpu_tensors_gives_the_reference_rounded() -> None:
    inputs = random_inputs(3, 8, 40)
    expected, expected_lse = run(inputs)
    out, lse = decode(inputs.q_latent, inputs.q_rope, inputs.cache, inputs.indices, GLM_SOFTMAX_SCALE)
    assert torch.equal(out, expected.bfloat16())
    assert torch.equal(lse, expected_lse.float())


def test_the_op_is_registered_with_a_matching_fake() -> None:
    inputs = random_inputs(2, 4, 16)
    arguments = (inputs.q_latent, inputs.q_rope, inputs.cache, inputs.indices, GLM_SOFTMAX_SCALE)
    outcome = torch.library.opcheck(decode, arguments, test_utils=("test_schema", "test_faketensor"))
    assert set(outcome.values()) == {"SUCCESS"}


def test_the_staged_path_costs_a_second_rounding() -> None:
    inputs = random_inputs(2, 8, 200)
    inputs.indices[0, 3:9] = -1
    rows = torch.full((1, 400, FP8_ROW_BYTES), POISON, dtype=torch.uint8)
    positions = torch.empty(2, 200, dtype=torch.int32)
    unpack_rows(inputs.cache, inputs.indices, rows, positions)
    out, _ = run(Inputs(inputs.q_latent, inputs.q_rope, rows, positions))
    expected, _ = run(inputs)
    assert 4e-3 < relative_l2(out, expected) <= 6e-2


def test_request_shaped_indices_stay_within_their_requests_pool() -> None:
    indices = request_indices(15, 2048, 150_000, torch.Generator().manual_seed(0), torch.device("cpu"))
    assert indices.shape == (15, 2048)
    for request in range(3):
        mine = indices[5 * request : 5 * request + 5]
        assert (mine // 50_000 == request).all()
        assert mine.unique().numel() <= 3000
    assert indices[0].unique().numel() == 2048


def strided(*shape: int, step: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(*shape[:-1], shape[-1] * step, dtype=dtype)[..., ::step]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cache": torch.zeros(4, 64, 656, dtype=torch.uint8)}, "a cache row has 352"),
        ({"cache": torch.zeros(4, 64, 352, dtype=torch.int8)}, "cache must be uint8"),
        ({"cache": torch.zeros(256, 352, dtype=torch.uint8)}, "cache must be uint8"),
        ({"cache": torch.zeros(0, 64, 352, dtype=torch.uint8)}, "no rows"),
        ({"cache": torch.zeros(4, 64, 360, dtype=torch.uint8)[..., :352]}, "multiple of 16"),
        ({"cache": torch.zeros(4, 64, 368, dtype=torch.uint8)[..., 8:360]}, "must start at"),
        ({"cache": strided(4, 64, 352, step=2, dtype=torch.uint8)}, "stride 1"),
        ({"cache": torch.zeros(2, 352, dtype=torch.uint8)[:, None].expand(2, 64, 352)}, "overlap"),
        ({"cache": torch.zeros(1, 1, 352, dtype=torch.uint8).expand(2**20, 2**12, 352)}, "more than 2147483647 rows"),
        ({"q_latent": torch.zeros(2, 4, 576, dtype=torch.bfloat16)}, "q_latent must be"),
        ({"q_latent": torch.zeros(2, 4, 512)}, "bfloat16 or float16"),
        ({"q_rope": torch.zeros(2, 4, 64, dtype=torch.float16)}, "bfloat16 or float16"),
        ({"q_rope": torch.zeros(2, 5, 64, dtype=torch.bfloat16)}, "q_rope must be"),
        ({"q_rope": strided(2, 4, 64, step=2, dtype=torch.bfloat16)}, "stride 1"),
        ({"q_latent": torch.zeros(2, 4, 516, dtype=torch.bfloat16)[..., :512]}, "multiples of 8"),
        ({"indices": torch.zeros(2, 32, dtype=torch.int64)}, "int32"),
        ({"indices": torch.zeros(3, 32, dtype=torch.int32)}, "indices must be"),
        ({"indices": torch.zeros(2, 0, dtype=torch.int32)}, "topk must be"),
        ({"indices": strided(2, 32, step=2, dtype=torch.int32)}, "stride 1"),
        ({"out": torch.zeros(2, 4, 512)}, "out must be"),
        ({"lse": torch.zeros(2, 4, dtype=torch.bfloat16)}, "lse must be"),
        ({"cluster_size": 7}, "cluster_size"),
    ],
)
def test_a_call_that_cannot_work_is_refused_before_any_launch(change: dict[str, object], message: str) -> None:
    call: dict[str, object] = {
        "out": torch.zeros(2, 4, 512, dtype=torch.bfloat16),
        "lse": torch.zeros(2, 4),
        "q_latent": torch.zeros(2, 4, 512, dtype=torch.bfloat16),
        "q_rope": torch.zeros(2, 4, 64, dtype=torch.bfloat16),
        "cache": torch.zeros(4, 64, 352, dtype=torch.uint8),
        "indices": torch.zeros(2, 32, dtype=torch.int32),
        "softmax_scale": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        decode_into(**{**call, **change})


def test_a_cache_beyond_64_gib_is_refused() -> None:
    """No such tensor is made: `meta` tensors have shapes and strides and no memory."""
    cache = torch.empty(2**28, 1, NVFP4_ROW_BYTES, dtype=torch.uint8, device="meta")
    with pytest.raises(ValueError, match="spans 94489280512 bytes"):
        check_cache(cache)


def test_more_than_128_heads_are_refused() -> None:
    heads = 129
    with pytest.raises(ValueError, match=r"heads must be 1\.\.128"):
        decode_into(
            torch.zeros(1, heads, 512, dtype=torch.bfloat16),
            torch.zeros(1, heads),
            torch.zeros(1, heads, 512, dtype=torch.bfloat16),
            torch.zeros(1, heads, 64, dtype=torch.bfloat16),
            torch.zeros(4, 64, 352, dtype=torch.uint8),
            torch.zeros(1, 32, dtype=torch.int32),
            1.0,
        )
