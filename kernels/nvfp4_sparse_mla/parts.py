"""Parts of the decode kernel by themselves, for the benchmark: where does a launch's time go?

Each is the kernel as it ships, ended early (enum Part in csrc/decode.cuh), in a library built with `--parts`.
"""

import ctypes
from collections.abc import Callable

import torch

from . import library
from .op import decode_arguments

PARTS = {"launch": 1, "gather": 2, "scores": 3}
"""launch: the cluster starts and readies its barriers; gather: and query, indices and the selected rows are loaded; scores:
and unpacking, scores and weights. The whole kernel adds weights times values, and the merge."""


def launcher(
    part: str,
    out: torch.Tensor,
    lse: torch.Tensor,
    q_latent: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    softmax_scale: float,
    cluster_size: int,
) -> Callable[[], None]:
    """A launch ready for capture; it leaves no result."""
    args = decode_arguments(out, lse, q_latent, q_rope, cache, indices, softmax_scale, cluster_size)
    kept = (out, lse, q_latent, q_rope, cache, indices)  # args holds their addresses only

    def launch() -> None:
        stream = int(torch.cuda.current_stream(kept[0].device).cuda_stream)
        library.check(library.load().prime_decode_part(ctypes.byref(args), PARTS[part], stream), "launching a part")

    return launch
