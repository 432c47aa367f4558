"""Time of one launch by CUDA-graph replay.

A graph holds many launches back to back, so a launch costs what it costs inside a captured decode step. With one set of
inputs the caches stay warm in L2; with enough sets, taken in turn, each launch finds its rows in device memory only.
"""

from collections.abc import Callable, Sequence

import torch

LAUNCHES_PER_GRAPH = 48
"""Enough that the graph's own start is below 1 % of a sample; a multiple of usual set counts."""

REPLAYS = 60
WARMUP_REPLAYS = 5


def graph_microseconds(
    launches: Sequence[Callable[[], None]], per_graph: int = LAUNCHES_PER_GRAPH, replays: int = REPLAYS
) -> list[float]:
    """One sample a replay: its time over its launches. `launches` are taken in turn; each must be ready for capture."""
    per_graph = max(per_graph, len(launches))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for launch in launches:
            launch()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for number in range(per_graph):
            launches[number % len(launches)]()
    samples = []
    for replay in range(WARMUP_REPLAYS + replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        if replay >= WARMUP_REPLAYS:
            samples.append(start.elapsed_time(end) * 1000 / per_graph)
    return samples
