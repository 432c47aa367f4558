"""Measures the decode paths side by side in one run and writes JSON: native NVFP4, FP8 rows, staged (unpack, then FP8).

    python -m prime_kernels.nvfp4_sparse_mla.benchmark --output result.json --commit <hash>

With `--flashmla` and the path of its library (in vLLM's wheel), FlashMLA's FP8 kernel as well, in two arrangements:
every query token a request of its own ("flashmla"), and five to a request ("flashmla5").

With a library built with `--parts`, and `--parts` here, parts of the kernel by themselves as well ("native-gather").

Every sample is one CUDA-graph replay over its launches. Warm: one set of inputs. Cold: sets in turn that together touch
COLD_BYTES, so that no launch finds its rows in L2.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..testing.comparison import relative_l2
from ..testing.generators import GLM_SOFTMAX_SCALE, REQUEST_QUERY_TOKENS, random_query, random_rows, request_indices
from ..testing.timing import LAUNCHES_PER_GRAPH, graph_microseconds
from . import flashmla, library, op, parts
from .plan import CLUSTER_SIZES, choose_cluster
from .rows import FP8_ROW_BYTES, LATENT_DIM, NVFP4_ROW_BYTES
from .writer import quantize

TOKENS = (1, 2, 4, 5, 8, 10, 15, 16, 20, 25, 30, 32, 40, 48, 64, 96, 128)
HEADS = 16
TOPK = 2048

CONTEXT_ROWS = 50_000
"""Rows of one request's context."""

CONTEXTS = 160
"""Contexts in the cache: enough distinct rows for the cold sets of every token count."""

COLD_BYTES = 160 * 2**20
"""What the cold sets touch together, NVFP4 rows counted: 2.7 times an H200's L2 of 60 MB."""

REQUEST_BYTES = 3000 * NVFP4_ROW_BYTES
"""What the tokens of one request touch of an NVFP4 cache."""

DISTINCT_ROWS = 65_536
"""Rows quantised; the cache repeats them, since speed depends on where rows lie and not on what they hold."""


@dataclass(frozen=True)
class Measurement:
    path: str
    tokens: int
    heads: int
    topk: int
    state: str
    indices: str
    cluster: int
    early_launch: bool
    sets: int
    median_us: float
    samples_us: list[float]


class Bench:
    """The caches of both formats, and the inputs of one measurement at a time."""

    def __init__(self, device: torch.device, with_flashmla: bool = False) -> None:
        self.device = device
        self.capacity = op.prepare(device)
        self.generator = torch.Generator(device=device).manual_seed(0)
        latent, rope = random_rows(DISTINCT_ROWS, self.generator, device)
        total = CONTEXTS * CONTEXT_ROWS
        self.caches = {}
        for row_bytes in (NVFP4_ROW_BYTES, FP8_ROW_BYTES, *((flashmla.ROW_BYTES,) if with_flashmla else ())):
            rows = (
                flashmla.quantize(latent, rope)
                if row_bytes == flashmla.ROW_BYTES
                else quantize(latent, rope, row_bytes)
            )
            cache = torch.empty(total // 64, 64, row_bytes, dtype=torch.uint8, device=device)
            flat = cache.view(total, row_bytes)
            for start in range(0, total, DISTINCT_ROWS):
                flat[start : start + DISTINCT_ROWS] = rows[: total - start]
            self.caches[row_bytes] = cache

    def indices(self, kind: str, tokens: int, topk: int, first_context: int) -> torch.Tensor:
        requests = -(-tokens // REQUEST_QUERY_TOKENS)
        first_row = (first_context % (CONTEXTS - requests + 1)) * CONTEXT_ROWS
        if kind == "request":
            return request_indices(tokens, topk, requests * CONTEXT_ROWS, self.generator, self.device) + first_row
        rows = CONTEXTS * CONTEXT_ROWS
        return torch.randint(rows, (tokens, topk), generator=self.generator, device=self.device, dtype=torch.int32)

    def launch(
        self, path: str, tokens: int, heads: int, topk: int, kind: str, first_context: int, cluster: int, early: bool
    ) -> Callable[[], None]:
        q_latent, q_rope = random_query(tokens, heads, self.generator, self.device)
        indices = self.indices(kind, tokens, topk, first_context)
        out = torch.empty(tokens, heads, LATENT_DIM, dtype=torch.bfloat16, device=self.device)
        lse = torch.empty(tokens, heads, device=self.device)
        if path.startswith("flashmla"):
            cache = self.caches[flashmla.ROW_BYTES]
            sequence = REQUEST_QUERY_TOKENS if path == "flashmla5" else 1
            return flashmla.launcher(q_latent, q_rope, cache, indices, GLM_SOFTMAX_SCALE, sequence)[0]
        if path != "staged":
            cache = self.caches[NVFP4_ROW_BYTES if path.startswith("native") else FP8_ROW_BYTES]
            if "-" in path:
                cluster = cluster or choose_cluster(tokens, heads, topk, self.capacity)
                part = path.split("-")[1]
                return parts.launcher(part, out, lse, q_latent, q_rope, cache, indices, GLM_SOFTMAX_SCALE, cluster)
            return lambda: op.decode_into(out, lse, q_latent, q_rope, cache, indices, GLM_SOFTMAX_SCALE, cluster, early)
        buffer = torch.empty(1, tokens * topk, FP8_ROW_BYTES, dtype=torch.uint8, device=self.device)
        positions = torch.empty(tokens, topk, dtype=torch.int32, device=self.device)

        def staged() -> None:
            op.unpack_rows(self.caches[NVFP4_ROW_BYTES], indices, buffer, positions)
            op.decode_into(out, lse, q_latent, q_rope, buffer, positions, GLM_SOFTMAX_SCALE, cluster, early)

        return staged

    def measure(
        self,
        path: str,
        tokens: int,
        state: str = "warm",
        heads: int = HEADS,
        topk: int = TOPK,
        kind: str = "request",
        cluster: int = 0,
        early: bool = False,
    ) -> Measurement:
        requests = -(-tokens // REQUEST_QUERY_TOKENS)
        sets = 1
        if state == "cold":
            touched = requests * REQUEST_BYTES if kind == "request" else tokens * topk * NVFP4_ROW_BYTES
            sets = max(2, min(CONTEXTS // requests, -(-COLD_BYTES // touched)))
        launches = [
            self.launch(path, tokens, heads, topk, kind, number * requests, cluster, early) for number in range(sets)
        ]
        per_graph = sets * -(-LAUNCHES_PER_GRAPH // sets)
        samples = graph_microseconds(launches, per_graph)
        chosen = cluster or choose_cluster(tokens, heads, topk, self.capacity)
        return Measurement(
            path, tokens, heads, topk, state, kind, chosen, early, sets,
            round(statistics.median(samples), 3), [round(sample, 3) for sample in samples],
        )  # fmt: skip

    def flashmla_error(self, tokens: int) -> float:
        """Relative L2 distance of FlashMLA's output to float64 attention over its own rows: is it called rightly?"""
        q_latent, q_rope = random_query(tokens, HEADS, self.generator, self.device)
        indices = self.indices("request", tokens, TOPK, 0)
        cache = self.caches[flashmla.ROW_BYTES]
        launch, out = flashmla.launcher(q_latent, q_rope, cache, indices, GLM_SOFTMAX_SCALE)
        out.fill_(float("nan"))
        launch()
        expected = flashmla.reference(q_latent, q_rope, cache, indices, GLM_SOFTMAX_SCALE)
        return relative_l2(out[:, :HEADS], expected)

    def copy_bytes_per_second(self) -> float:
        """Device-to-device copy, bytes read plus bytes written."""
        source = self.caches[FP8_ROW_BYTES]
        target = torch.empty_like(source)
        samples = graph_microseconds([lambda: target.copy_(source)], per_graph=4, replays=10)
        microseconds: float = statistics.median(samples)
        bytes_moved: int = 2 * source.numel()
        return bytes_moved / microseconds * 1e6


def source_hash() -> str:
    """Over the kernel sources, so that a result names what it measured even from an uncommitted tree."""
    digest = hashlib.sha256()
    for path in sorted((Path(__file__).resolve().parent / "csrc").iterdir()):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def environment(device: torch.device, commit: str, module: str) -> dict[str, object]:
    query = ["nvidia-smi", "--query-gpu=uuid,driver_version,clocks.max.sm", "--format=csv,noheader"]
    uuid, driver, clock = subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip().split(", ")
    words = [word if word.startswith("-") else Path(word).name for word in sys.argv[1:]]  # no folder of this machine
    return {
        "command": " ".join([f"python -m prime_kernels.nvfp4_sparse_mla.{module}", *words]),
        "device": torch.cuda.get_device_name(device),
        "gpu_uuid": uuid,
        "driver": driver,
        "max_sm_clock": clock,
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "nvcc": library.load().prime_compiler_version() / 1000,
        "commit": commit,
        "source_sha256": source_hash(),
    }


def plan_of_flashmla(quick: bool) -> list[dict[str, object]]:
    every: list[dict[str, object]] = []
    for tokens in (15, 64) if quick else TOKENS:
        for state in ("warm", "cold"):
            every.append({"path": "flashmla", "tokens": tokens, "state": state})
            if tokens % REQUEST_QUERY_TOKENS == 0:
                every.append({"path": "flashmla5", "tokens": tokens, "state": state})
    every += [{"path": path, "tokens": 15, "heads": heads} for heads in (64, 128) for path in ("flashmla", "flashmla5")]
    return every


def plan_of_parts() -> list[dict[str, object]]:
    """15 tokens, warm: eight stages a thread block, and two, which leaves what does not grow with the stages."""
    whole = [{"path": path, "tokens": 15, "topk": topk} for topk in (2048, 512) for path in ("native", "fp8")]
    cut = [{**each, "path": f"{each['path']}-{part}"} for part in parts.PARTS for each in whole]
    return [{**each, "cluster": 8} for each in (*cut, *whole)]


def plan(quick: bool) -> list[dict[str, object]]:
    every: list[dict[str, object]] = [
        {"path": path, "tokens": tokens, "state": state}
        for tokens in ((15, 64) if quick else TOKENS)
        for state in ("warm", "cold")
        for path in ("native", "fp8", "staged")
    ]
    every += [
        {"path": path, "tokens": 15, "cluster": cluster} for cluster in CLUSTER_SIZES for path in ("native", "fp8")
    ]
    every += [
        {"path": path, "tokens": 15, "topk": topk, "cluster": cluster}
        for topk, cluster in ((64, 1), (128, 1), (256, 1), (512, 8), (1024, 8))
        for path in ("native", "fp8")
    ]  # what is fixed and what a stage costs
    every += [
        {"path": path, "tokens": tokens, "early": True} for tokens in (5, 15, 30, 64) for path in ("native", "fp8")
    ]
    if quick:
        return every
    every += [
        {"path": "native", "tokens": tokens, "cluster": cluster}
        for tokens in (5, 30, 64, 128)
        for cluster in CLUSTER_SIZES
    ]  # does the planner choose the best?
    every += [
        {"path": path, "tokens": tokens, "state": state, "kind": "uniform"}
        for tokens in (15, 64)
        for state in ("warm", "cold")
        for path in ("native", "fp8", "staged")
    ]
    every += [
        {"path": path, "tokens": 15, "heads": heads}
        for heads in (8, 32, 64, 128)
        for path in ("native", "fp8", "staged")
    ]
    every += [{"path": path, "tokens": 15} for path in ("native", "fp8", "staged")]  # again: the spread between runs
    return every


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--commit", default="not given")
    parser.add_argument("--flashmla", type=Path, help="FlashMLA's library: _flashmla_C.abi3.so of a vLLM wheel")
    parser.add_argument("--parts", action="store_true", help="parts of the kernel too; the library must have them")
    parser.add_argument("--quick", action="store_true", help="15 and 64 tokens only")
    arguments = parser.parse_args()
    device = torch.device("cuda")
    if arguments.flashmla:
        flashmla.load(arguments.flashmla)
    bench = Bench(device, with_flashmla=bool(arguments.flashmla))
    result = environment(device, arguments.commit, "benchmark")
    result["cluster_capacity"] = list(bench.capacity)
    result["copy_bytes_per_second"] = bench.copy_bytes_per_second()
    more: list[dict[str, object]] = plan_of_parts() if arguments.parts else []
    if arguments.flashmla:
        result["flashmla_library_sha256"] = hashlib.sha256(arguments.flashmla.read_bytes()).hexdigest()
        result["flashmla_relative_l2"] = bench.flashmla_error(15)
        more += plan_of_flashmla(arguments.quick)
    print(json.dumps(result, indent=1))
    measurements = []
    for wanted in plan(arguments.quick) + more:
        found = bench.measure(**wanted)  # type: ignore[arg-type]
        measurements.append(asdict(found))
        print(
            f"{found.path:13} T={found.tokens:<4} H={found.heads:<4} K={found.topk:<5} C={found.cluster} {found.state}"
            f" {found.indices:8}{' early' if found.early_launch else ''}"
            f" {found.median_us:8.2f} us  (min {min(found.samples_us):.2f}, max {max(found.samples_us):.2f})"
        )
    arguments.output.write_text(json.dumps({**result, "measurements": measurements}) + "\n")


if __name__ == "__main__":
    main()
