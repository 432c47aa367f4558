"""Caches, queries and index sets, drawn from a seed."""

from dataclasses import dataclass

import torch

from ..nvfp4_sparse_mla.rows import LATENT_DIM, NVFP4_ROW_BYTES, ROPE_DIM
from ..nvfp4_sparse_mla.writer import quantize

POISON = 0xFF
"""What fills bytes that nothing may read: NaN as a value and as a scale."""

GLM_SOFTMAX_SCALE = 1 / 16
"""GLM-5: 1 / sqrt(192 + 64), the dims of a head before absorption."""

REQUEST_QUERY_TOKENS = 5
"""Tokens of one request in a step: one accepted, four drafted."""

RECENT_ROWS = 1100
OLDER_ROWS = 1900
"""A request's tokens choose among nearly the same rows: the recent ones and a fixed set of older ones."""


@dataclass(frozen=True)
class Inputs:
    q_latent: torch.Tensor
    q_rope: torch.Tensor
    cache: torch.Tensor
    indices: torch.Tensor


def random_rows(count: int, generator: torch.Generator, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Latent values whose size differs by block, as real ones do, and positional values several times as large."""
    latent = torch.randn(count, LATENT_DIM, generator=generator, device=device)
    sizes = torch.exp2(torch.randn(1, LATENT_DIM // 16, 1, generator=generator, device=device))
    latent = (latent.view(count, -1, 16) * sizes).view(count, LATENT_DIM)
    rope = 3 * torch.randn(count, ROPE_DIM, generator=generator, device=device)
    return latent.bfloat16(), rope.bfloat16()


def random_cache(
    rows: int, block_size: int, row_bytes: int, generator: torch.Generator, device: torch.device
) -> torch.Tensor:
    blocks = -(-rows // block_size)
    latent, rope = random_rows(blocks * block_size, generator, device)
    return quantize(latent, rope, row_bytes).view(blocks, block_size, row_bytes)


def random_query(
    tokens: int, heads: int, generator: torch.Generator, device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sized so that scores spread over a few units: attention is neither flat nor a single row."""
    q_latent = torch.randn(tokens, heads, LATENT_DIM, generator=generator, device=device)
    q_rope = torch.randn(tokens, heads, ROPE_DIM, generator=generator, device=device)
    return q_latent.to(dtype), q_rope.to(dtype)


def uniform_indices(
    tokens: int, topk: int, rows: int, generator: torch.Generator, device: torch.device
) -> torch.Tensor:
    return torch.randint(rows, (tokens, topk), generator=generator, device=device, dtype=torch.int32)


def request_indices(
    tokens: int, topk: int, rows: int, generator: torch.Generator, device: torch.device
) -> torch.Tensor:
    """As a sparse indexer chooses: the tokens of one request draw from one pool of 3,000 rows, without repetition."""
    pool_rows = RECENT_ROWS + OLDER_ROWS
    if topk > pool_rows:
        raise ValueError(f"topk {topk} exceeds the pool of {pool_rows} rows")
    picked = []
    requests = -(-tokens // REQUEST_QUERY_TOKENS)
    context = rows // requests
    if context < pool_rows:
        raise ValueError(f"{rows} rows are too few for {requests} requests of at least {pool_rows}")
    for request in range(requests):
        older = torch.randperm(context - RECENT_ROWS, generator=generator, device=device)[:OLDER_ROWS]
        recent = torch.arange(context - RECENT_ROWS, context, device=device)
        pool = torch.cat((older, recent)) + request * context
        for _ in range(min(REQUEST_QUERY_TOKENS, tokens - request * REQUEST_QUERY_TOKENS)):
            picked.append(pool[torch.randperm(pool_rows, generator=generator, device=device)[:topk]])
    return torch.stack(picked).int()


def random_inputs(
    tokens: int,
    heads: int,
    topk: int,
    rows: int = 4096,
    block_size: int = 64,
    row_bytes: int = NVFP4_ROW_BYTES,
    device: str = "cpu",
    seed: int = 0,
    dtype: torch.dtype = torch.bfloat16,
) -> Inputs:
    target = torch.device(device)
    generator = torch.Generator(device=target).manual_seed(seed)
    cache = random_cache(rows, block_size, row_bytes, generator, target)
    q_latent, q_rope = random_query(tokens, heads, generator, target, dtype)
    indices = uniform_indices(tokens, topk, cache.shape[0] * block_size, generator, target)
    return Inputs(q_latent, q_rope, cache, indices)
