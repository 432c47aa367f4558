"""Does quantising the cache lose what attention looks for? Planted keys among many rows, held as BF16, FP8 and NVFP4.

    python -m prime_kernels.nvfp4_sparse_mla.retrieval --output retrieval.json

Each (token, head) has one planted row, whose BF16 score beats every other row's by a chosen margin. Printed: how often
the quantised rows still score the planted one highest, and how far the kernel's output over the 2,048 best rows lies
from float64 attention over the BF16 rows. Rows are drawn, not taken from a model: this is evidence about the format and
the kernel, not about a model's answers.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch

from ..testing.comparison import relative_l2
from ..testing.generators import GLM_SOFTMAX_SCALE
from .benchmark import environment
from .op import decode_into
from .rows import FP8_ROW_BYTES, LATENT_DIM, NVFP4_ROW_BYTES, QUERY_DIM, ROPE_DIM, dequantize
from .writer import quantize

ROWS = (8_192, 32_768, 163_840)
MARGINS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""By how much (natural logarithm of the weight) the planted row beats the next best."""

TOKENS = 8
HEADS = 16
TOPK = 2048


def plant(
    rows: int, margin: float, generator: torch.Generator, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """BF16 rows [rows, 576] and queries [T, H, 576] in float64, and where each (token, head)'s row was planted."""
    keys = torch.randn(rows, QUERY_DIM, generator=generator, device=device, dtype=torch.float64).bfloat16().double()
    query = (
        torch.randn(TOKENS, HEADS, QUERY_DIM, generator=generator, device=device, dtype=torch.float64)
        .bfloat16()
        .double()
    )
    places = torch.randperm(rows, generator=generator, device=device)[: TOKENS * HEADS].view(TOKENS, HEADS)
    best = (GLM_SOFTMAX_SCALE * query.flatten(0, 1) @ keys.T).amax(dim=-1).view(TOKENS, HEADS)
    own = GLM_SOFTMAX_SCALE * (query * keys[places]).sum(-1)
    needed = (best + margin - own) / (GLM_SOFTMAX_SCALE * query.square().sum(-1))
    keys[places.flatten()] += (needed[..., None] * query).flatten(0, 1)
    return keys.bfloat16().double(), query, places


def measure(rows: int, margin: float, device: torch.device, seed: int) -> dict[str, object]:
    generator = torch.Generator(device=device).manual_seed(seed)
    keys, query, places = plant(rows, margin, generator, device)
    scores = GLM_SOFTMAX_SCALE * query.flatten(0, 1) @ keys.T
    indices = scores.view(TOKENS, HEADS, rows).amax(dim=1).topk(TOPK).indices
    expected = torch.empty(TOKENS, HEADS, LATENT_DIM, dtype=torch.float64, device=device)
    for token in range(TOKENS):
        chosen = keys[indices[token]]
        weights = (GLM_SOFTMAX_SCALE * query[token] @ chosen.T).softmax(dim=-1)
        expected[token] = weights @ chosen[:, :LATENT_DIM]
    result: dict[str, object] = {"rows": rows, "margin": margin, "planted": places.numel()}
    result["bf16_top1"] = float((scores.argmax(-1) == places.flatten()).double().mean())
    for name, row_bytes in (("fp8", FP8_ROW_BYTES), ("nvfp4", NVFP4_ROW_BYTES)):
        cache = quantize(keys[:, :LATENT_DIM], keys[:, LATENT_DIM:], row_bytes)
        stored = GLM_SOFTMAX_SCALE * query.flatten(0, 1) @ dequantize(cache).T
        result[f"{name}_top1"] = float((stored.argmax(-1) == places.flatten()).double().mean())
        out = torch.empty(TOKENS, HEADS, LATENT_DIM, dtype=torch.bfloat16, device=device)
        lse = torch.empty(TOKENS, HEADS, device=device)
        q_latent, q_rope = query.bfloat16().split((LATENT_DIM, ROPE_DIM), dim=-1)
        paged = cache.view(rows // 64, 64, row_bytes)
        decode_into(out, lse, q_latent, q_rope, paged, indices.int().contiguous(), GLM_SOFTMAX_SCALE)
        cosine = torch.nn.functional.cosine_similarity(out.double(), expected, dim=-1)
        result[f"{name}_output_relative_l2"] = relative_l2(out, expected)
        result[f"{name}_output_cosine_median"] = statistics.median(cosine.flatten().tolist())
        result[f"{name}_output_cosine_worst"] = float(cosine.min())
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--commit", default="not given")
    arguments = parser.parse_args()
    device = torch.device("cuda")
    results: list[dict[str, object]] = []
    print("   rows margin | top-1 BF16   FP8 NVFP4 | output rel-L2   FP8 NVFP4 | worst cosine   FP8 NVFP4")
    for rows in ROWS:
        for margin in MARGINS:
            found = measure(rows, margin, device, seed=len(results))
            results.append(found)
            print(
                f"{rows:7} {margin:6.2f} |     {found['bf16_top1']:7.3f} {found['fp8_top1']:5.3f} "
                f"{found['nvfp4_top1']:5.3f} |           {found['fp8_output_relative_l2']:7.4f} "
                f"{found['nvfp4_output_relative_l2']:5.3f} |          {found['fp8_output_cosine_worst']:7.4f} "
                f"{found['nvfp4_output_cosine_worst']:5.3f}"
            )
    arguments.output.write_text(
        json.dumps({**environment(device, arguments.commit, "retrieval"), "results": results}) + "\n"
    )


if __name__ == "__main__":
    main()
