"""The decode kernel on a GPU against float64, over the shapes, paddings and layouts that broke other kernels."""

import pytest
import torch
from prime_kernels.nvfp4_sparse_mla import decode, decode_into, op
from prime_kernels.nvfp4_sparse_mla.plan import CLUSTER_SIZES
from prime_kernels.nvfp4_sparse_mla.reference import decode_float64
from prime_kernels.nvfp4_sparse_mla.rows import FP8_ROW_BYTES, LATENT_DIM, NVFP4_ROW_BYTES
from prime_kernels.testing.comparison import largest_difference, relative_l2
from prime_kernels.testing.generators import GLM_SOFTMAX_SCALE, POISON, Inputs, random_inputs

pytestmark = pytest.mark.gpu

OUTPUT_ERROR = 4e-3
"""Relative L2 distance to float64: BF16 output alone costs 1.7e-3."""

LSE_ERROR = 2e-4

FORMATS = (NVFP4_ROW_BYTES, FP8_ROW_BYTES)


def run(inputs: Inputs, cluster_size: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel into poisoned outputs, so that an element it does not write shows."""
    tokens, heads = inputs.q_latent.shape[:2]
    out = torch.full((tokens, heads, LATENT_DIM), torch.nan, dtype=torch.bfloat16, device="cuda")
    lse = torch.full((tokens, heads), torch.nan, device="cuda")
    decode_into(out, lse, inputs.q_latent, inputs.q_rope, inputs.cache, inputs.indices, GLM_SOFTMAX_SCALE, cluster_size)
    torch.cuda.synchronize()
    return out, lse


def assert_exact_enough(inputs: Inputs, cluster_size: int = 0) -> None:
    out, lse = run(inputs, cluster_size)
    expected, expected_lse = decode_float64(
        inputs.q_latent, inputs.q_rope, inputs.cache, inputs.indices, GLM_SOFTMAX_SCALE
    )
    assert relative_l2(out, expected) <= OUTPUT_ERROR
    assert largest_difference(lse, expected_lse) <= LSE_ERROR


@pytest.mark.parametrize("row_bytes", FORMATS)
@pytest.mark.parametrize("cluster_size", CLUSTER_SIZES)
def test_every_cluster_size_agrees_with_float64(gpu: str, row_bytes: int, cluster_size: int) -> None:
    assert_exact_enough(random_inputs(15, 16, 2048, row_bytes=row_bytes, device=gpu), cluster_size)


@pytest.mark.parametrize("row_bytes", FORMATS)
@pytest.mark.parametrize("heads", [1, 8, 16, 17, 32, 64, 128])
def test_every_number_of_heads_agrees_with_float64(gpu: str, row_bytes: int, heads: int) -> None:
    assert_exact_enough(random_inputs(3, heads, 512, row_bytes=row_bytes, device=gpu, seed=heads))


@pytest.mark.parametrize("topk", [1, 2, 31, 32, 33, 63, 64, 65, 127, 576, 2047, 2048])
def test_every_number_of_selected_rows_agrees_with_float64(gpu: str, topk: int) -> None:
    for row_bytes in FORMATS:
        assert_exact_enough(random_inputs(4, 16, topk, row_bytes=row_bytes, device=gpu, seed=topk))


@pytest.mark.parametrize("tokens", [1, 2, 4, 15, 16, 32, 64, 128, 200])
def test_every_number_of_tokens_agrees_with_float64(gpu: str, tokens: int) -> None:
    assert_exact_enough(random_inputs(tokens, 16, 1024, device=gpu, seed=tokens))


@pytest.mark.parametrize("cluster_size", CLUSTER_SIZES)
def test_blocks_of_a_cluster_may_have_nothing_to_do(gpu: str, cluster_size: int) -> None:
    for topk in (1, 33, 96):
        assert_exact_enough(random_inputs(2, 16, topk, device=gpu, seed=topk), cluster_size)


def test_no_tokens_is_no_launch(gpu: str) -> None:
    out, lse = run(random_inputs(0, 16, 64, device=gpu))
    assert out.shape == (0, 16, LATENT_DIM)
    assert lse.shape == (0, 16)


def test_fp16_queries_agree_with_float64(gpu: str) -> None:
    assert_exact_enough(random_inputs(5, 16, 512, device=gpu, dtype=torch.float16))


@pytest.mark.parametrize("size", [2.0**-60, 2.0**-10, 2.0**18])
def test_queries_beyond_fp16s_range_are_scaled_into_it(gpu: str, size: float) -> None:
    inputs = random_inputs(3, 16, 512, device=gpu)
    scaled = Inputs(inputs.q_latent * size, inputs.q_rope * size, inputs.cache, inputs.indices)
    out = torch.empty(3, 16, LATENT_DIM, dtype=torch.bfloat16, device=gpu)
    lse = torch.empty(3, 16, device=gpu)
    decode_into(out, lse, scaled.q_latent, scaled.q_rope, scaled.cache, scaled.indices, GLM_SOFTMAX_SCALE / size)
    expected, _ = decode_float64(inputs.q_latent, inputs.q_rope, inputs.cache, inputs.indices, GLM_SOFTMAX_SCALE)
    assert relative_l2(out, expected) <= OUTPUT_ERROR


PADDINGS = {
    "suffix": lambda k: k >= 1000,
    "leading 16": lambda k: k < 16,
    "first stage": lambda k: k < 64,
    "first stage of each of eight blocks": lambda k: k % 256 < 64,
    "whole share of the first block": lambda k: k < 256,
    "all but the last": lambda k: k < 2047,
    "all but the first": lambda k: k > 0,
    "every other": lambda k: k % 2 == 0,
    "two of three": lambda k: k % 3 != 1,
}


@pytest.mark.parametrize("name", PADDINGS)
def test_padding_anywhere_is_skipped(gpu: str, name: str) -> None:
    for row_bytes in FORMATS:
        inputs = random_inputs(6, 16, 2048, row_bytes=row_bytes, device=gpu)
        inputs.indices[::2, PADDINGS[name](torch.arange(2048, device=gpu))] = -1
        assert_exact_enough(inputs)


def test_a_token_that_selects_nothing_gives_exact_zeros(gpu: str) -> None:
    inputs = random_inputs(15, 16, 2048, device=gpu)
    inputs.indices[3] = -1
    inputs.indices[14] = -(2**31)
    out, lse = run(inputs)
    for token in (3, 14):
        assert out[token].count_nonzero() == 0
        assert (lse[token] == -torch.inf).all()
    assert_exact_enough(inputs)


def test_an_index_beyond_the_cache_selects_nothing(gpu: str) -> None:
    inputs = random_inputs(2, 16, 256, device=gpu)
    inputs.indices[:, ::3] = 2**31 - 1
    inputs.indices[:, 1] = inputs.cache.shape[0] * inputs.cache.shape[1]
    assert_exact_enough(inputs)


def test_a_row_selected_twice_counts_twice(gpu: str) -> None:
    inputs = random_inputs(2, 16, 128, device=gpu)
    inputs.indices[:, 1:100] = inputs.indices[:, :1]
    assert_exact_enough(inputs)


@pytest.mark.parametrize("row_bytes", FORMATS)
def test_rows_that_are_not_selected_are_never_read(gpu: str, row_bytes: int) -> None:
    inputs = random_inputs(4, 16, 300, row_bytes=row_bytes, device=gpu)
    inputs.indices[:, 100:140] = -1
    flat = inputs.cache.view(-1, row_bytes)
    unread = torch.ones(flat.shape[0], dtype=torch.bool, device=gpu)
    unread[inputs.indices[inputs.indices >= 0].long()] = False
    expected, _ = run(inputs)
    flat[unread] = POISON
    out, _ = run(inputs)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("block_size", [1, 61, 64, 1024])
def test_any_block_size_and_block_stride_is_honoured(gpu: str, block_size: int) -> None:
    inputs = random_inputs(3, 16, 512, rows=4096, block_size=block_size, device=gpu)
    expected, _ = run(inputs)
    blocks = inputs.cache.shape[0]
    layers = torch.full((blocks, 3, block_size, NVFP4_ROW_BYTES), POISON, dtype=torch.uint8, device=gpu)
    layers[:, 1] = inputs.cache
    out, _ = run(Inputs(inputs.q_latent, inputs.q_rope, layers[:, 1], inputs.indices))
    assert torch.equal(out, expected)
    padded = torch.full((blocks, block_size, NVFP4_ROW_BYTES + 32), POISON, dtype=torch.uint8, device=gpu)
    padded[..., :NVFP4_ROW_BYTES] = inputs.cache
    out, _ = run(Inputs(inputs.q_latent, inputs.q_rope, padded[..., :NVFP4_ROW_BYTES], inputs.indices))
    assert torch.equal(out, expected)


def test_strided_queries_and_indices_are_read_where_they_lie(gpu: str) -> None:
    inputs = random_inputs(5, 16, 200, device=gpu)
    expected, _ = run(inputs)
    joined = torch.cat((inputs.q_latent, inputs.q_rope), dim=-1).transpose(0, 1).contiguous().transpose(0, 1)
    wide = torch.full((5, 300), -1, dtype=torch.int32, device=gpu)
    wide[:, :200] = inputs.indices
    out, _ = run(Inputs(joined[..., :LATENT_DIM], joined[..., LATENT_DIM:], inputs.cache, wide[:, :200]))
    assert torch.equal(out, expected)


def test_results_repeat_bit_for_bit(gpu: str) -> None:
    inputs = random_inputs(15, 16, 2048, device=gpu)
    expected, expected_lse = run(inputs)
    for _ in range(300):
        out, lse = run(inputs)
        assert torch.equal(out, expected)
        assert torch.equal(lse, expected_lse)


def test_large_values_do_not_overflow_the_partial_results(gpu: str) -> None:
    """2,048 rows of the largest value that a row can hold: their sum is far beyond fp16."""
    inputs = random_inputs(2, 16, 2048, device=gpu)
    inputs.cache[..., :256] = 0x77
    inputs.cache[..., 320:] = 0x7E
    out, _ = run(Inputs(inputs.q_latent * 0, inputs.q_rope * 0, inputs.cache, inputs.indices))
    assert (out.float() - 2688).abs().max() <= 8


def test_the_custom_op_gives_what_decode_into_gives(gpu: str) -> None:
    inputs = random_inputs(7, 16, 512, device=gpu)
    expected, expected_lse = run(inputs)
    out, lse = decode(inputs.q_latent, inputs.q_rope, inputs.cache, inputs.indices, GLM_SOFTMAX_SCALE)
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse)


def test_a_captured_graph_reads_the_indices_of_each_replay(gpu: str) -> None:
    inputs = random_inputs(15, 16, 2048, device=gpu)
    out = torch.empty(15, 16, LATENT_DIM, dtype=torch.bfloat16, device=gpu)
    lse = torch.empty(15, 16, device=gpu)
    op.prepare(torch.device(gpu))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode_into(out, lse, inputs.q_latent, inputs.q_rope, inputs.cache, inputs.indices, GLM_SOFTMAX_SCALE)
    for seed in range(3):
        inputs.indices.copy_(random_inputs(15, 16, 2048, device=gpu, seed=seed + 7).indices)
        inputs.indices[:, : 100 * seed] = -1
        out.fill_(torch.nan)
        graph.replay()
        expected, _ = decode_float64(inputs.q_latent, inputs.q_rope, inputs.cache, inputs.indices, GLM_SOFTMAX_SCALE)
        assert relative_l2(out, expected) <= OUTPUT_ERROR


@pytest.mark.slow
@pytest.mark.parametrize("early_launch", [False, True])
def test_a_hundred_thousand_replayed_launches_end_with_the_same_bits(gpu: str, early_launch: bool) -> None:
    inputs = random_inputs(15, 16, 2048, device=gpu)
    expected, expected_lse = run(inputs)
    outs = torch.full((20, 15, 16, LATENT_DIM), torch.nan, dtype=torch.bfloat16, device=gpu)
    lses = torch.full((20, 15, 16), torch.nan, device=gpu)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for out, lse in zip(outs, lses, strict=True):
            decode_into(
                out, lse, inputs.q_latent, inputs.q_rope, inputs.cache, inputs.indices, GLM_SOFTMAX_SCALE,
                early_launch=early_launch,
            )  # fmt: skip
    for replay in range(5000):
        graph.replay()
        if replay % 500 == 0:
            assert torch.equal(outs, expected.expand_as(outs))
            assert torch.equal(lses, expected_lse.expand_as(lses))
            outs.fill_(torch.nan)
            lses.fill_(torch.nan)
    torch.cuda.synchronize()
    assert torch.equal(outs, expected.expand_as(outs))
    assert torch.equal(lses, expected_lse.expand_as(lses))


def test_an_early_launch_still_waits_for_what_it_reads(gpu: str) -> None:
    """A chain of launches, each on indices that a copy just ahead of it wrote, gives what single launches give."""
    choices = [random_inputs(15, 16, 2048, device=gpu, seed=seed) for seed in range(8)]
    inputs = choices[0]
    live = torch.empty_like(inputs.indices)
    outs = torch.full((8, 15, 16, LATENT_DIM), torch.nan, dtype=torch.bfloat16, device=gpu)
    lse = torch.empty(15, 16, device=gpu)
    for number, choice in enumerate(choices):
        live.copy_(choice.indices)
        for _ in range(3):
            decode_into(
                outs[number], lse, inputs.q_latent, inputs.q_rope, inputs.cache, live, GLM_SOFTMAX_SCALE,
                early_launch=True,
            )  # fmt: skip
    for number, choice in enumerate(choices):
        expected, _ = run(Inputs(inputs.q_latent, inputs.q_rope, inputs.cache, choice.indices))
        assert torch.equal(outs[number], expected)


def test_a_first_call_inside_capture_is_refused_with_its_remedy(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = random_inputs(1, 16, 64, device=gpu)
    out = torch.empty(1, 16, LATENT_DIM, dtype=torch.bfloat16, device=gpu)
    lse = torch.empty(1, 16, device=gpu)
    monkeypatch.setattr(op, "_capacity", {})
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out.zero_()  # torch warns of an empty graph
        with pytest.raises(ValueError, match="call prepare"):
            decode_into(out, lse, inputs.q_latent, inputs.q_rope, inputs.cache, inputs.indices, GLM_SOFTMAX_SCALE)
