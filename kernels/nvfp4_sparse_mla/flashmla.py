"""FlashMLA's sparse FP8 decode beside ours: the public kernel for Hopper, as vLLM's wheel carries it.

Its row has 656 bytes: 512 E4M3 values, 4 float32 scales of 128 values each, 64 positional bf16 values. It takes 64 or 128
heads, so fewer are padded with zeros, as its users must. Loaded from the wheel's own shared library; not a dependency.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from .rows import LATENT_DIM, QUERY_DIM, ROPE_DIM

ROW_BYTES = 656
SCALED_VALUES = 128
HEADS = (64, 128)
LARGEST_E4M3 = 448.0


def load(path: Path) -> None:
    """Registers `torch.ops._flashmla_C`."""
    torch.ops.load_library(str(path))


def quantize(latent: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
    """[N, 512] and [N, 64] -> uint8 [N, 656]."""
    groups = latent.float().view(latent.shape[0], -1, SCALED_VALUES)
    scales = (groups.abs().amax(-1) / LARGEST_E4M3).clamp(min=1e-12)
    values = (groups / scales[..., None]).to(torch.float8_e4m3fn).flatten(1)
    parts = (values, scales, rope.bfloat16())
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=1)


def dequantize(rows: torch.Tensor) -> torch.Tensor:
    """uint8 [..., 656] -> float64 [..., 576]."""
    scale_at, rope_at = LATENT_DIM, LATENT_DIM + 4 * LATENT_DIM // SCALED_VALUES
    values = rows[..., :scale_at].contiguous().view(torch.float8_e4m3fn).double()
    scales = rows[..., scale_at:rope_at].contiguous().view(torch.float32).double()
    rope = rows[..., rope_at:].contiguous().view(torch.bfloat16).double()
    return torch.cat((values * scales.repeat_interleave(SCALED_VALUES, dim=-1), rope), dim=-1)


def launcher(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    softmax_scale: float,
    sequence: int = 1,
) -> tuple[Callable[[], None], torch.Tensor]:
    """A launch ready for capture, and its output [T, heads padded, 512] bf16. cache: uint8 [blocks, block_size, 656].
    `sequence`: query tokens of one request, which FlashMLA may be given as one; T must be a multiple of it."""
    tokens, heads = q_latent.shape[:2]
    padded = next(size for size in HEADS if size >= heads)
    query = q_latent.new_zeros((tokens // sequence, sequence, padded, QUERY_DIM))
    query.view(tokens, padded, QUERY_DIM)[:, :heads] = torch.cat((q_latent, q_rope), dim=-1)
    kv = cache.view(torch.float8_e4m3fn).unsqueeze(2)
    chosen = indices.view(tokens // sequence, sequence, -1)
    out = query.new_empty((tokens // sequence, sequence, padded, LATENT_DIM))
    decode = torch.ops._flashmla_C.sparse_decode_fwd
    nothing = (None, None, None)

    # The first call plans; later ones reuse the plan, as a decode step does over its layers.
    first = decode(query, kv, chosen, None, None, None, None, *nothing, LATENT_DIM, softmax_scale, out)
    plan = first[2:]

    def launch() -> None:
        decode(query, kv, chosen, None, None, *plan, *nothing, LATENT_DIM, softmax_scale, out)

    return launch, out.view(tokens, padded, LATENT_DIM)


def reference(
    q_latent: torch.Tensor, q_rope: torch.Tensor, cache: torch.Tensor, indices: torch.Tensor, softmax_scale: float
) -> torch.Tensor:
    """Float64 attention over the rows as stored: [T, H, 512]."""
    rows = dequantize(cache.view(-1, ROW_BYTES)[indices.long()])
    query = torch.cat((q_latent, q_rope), dim=-1).double()
    assert query.shape[2] == LATENT_DIM + ROPE_DIM
    weights = (softmax_scale * query @ rows.transpose(1, 2)).softmax(dim=-1)
    return weights @ rows[..., :LATENT_DIM]
