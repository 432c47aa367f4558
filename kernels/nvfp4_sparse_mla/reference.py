"""Sparse MLA decode in float64, one token at a time: what every kernel here is compared with, and the CPU path.

    s_k = softmax_scale * (q_latent . latent_k + q_rope . rope_k)    over the selected rows k
    out = sum_k exp(s_k) latent_k / sum_k exp(s_k),   lse = log sum_k exp(s_k)

An index below 0 or not below the number of rows selects nothing; a row selected twice counts twice. A token that
selects nothing gives zeros and lse = -inf.
"""

import torch

from .rows import LATENT_DIM, dequantize


def gather_rows(cache: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Rows of a [blocks, block_size, bytes] cache by flat index; no copy of the cache, whatever its strides."""
    block_size = cache.shape[1]
    return cache[indices // block_size, indices % block_size]


def decode_float64(
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    softmax_scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, H, 512] output and [T, H] log-sum-exp (natural logarithm), both float64."""
    tokens, heads = q_latent.shape[:2]
    rows = cache.shape[0] * cache.shape[1]
    out = torch.zeros(tokens, heads, LATENT_DIM, dtype=torch.float64, device=q_latent.device)
    lse = torch.full((tokens, heads), -torch.inf, dtype=torch.float64, device=q_latent.device)
    query = torch.cat((q_latent, q_rope), dim=-1).double()
    for token in range(tokens):
        chosen = indices[token].long()
        chosen = chosen[(chosen >= 0) & (chosen < rows)]
        if chosen.numel() == 0:
            continue
        keys = dequantize(gather_rows(cache, chosen))
        scores = softmax_scale * (query[token] @ keys.T)
        lse[token] = torch.logsumexp(scores, dim=-1)
        out[token] = torch.exp(scores - lse[token][:, None]) @ keys[:, :LATENT_DIM]
    return out, lse
