"""How many thread blocks share one token.

More blocks mean fewer stages each, but clusters that do not fit the device at once run in further waves. A wave costs
its stages plus a fixed part, so: least waves * (fixed + stages), ties to the smaller cluster.
"""

from collections.abc import Sequence
from math import ceil

STAGE_KEYS = 32
"""Rows that one pipeline stage takes: kStageKeys in csrc/decode.cuh."""

HEADS_PER_CLUSTER = 16
"""Query heads that one cluster serves: kHeads in csrc/decode.cuh."""

CLUSTER_SIZES = (1, 2, 3, 4, 5, 6, 8)

WAVE_COST_STAGES = 8
"""Launch, first gather and merge of one wave, in stages."""


def stages_per_block(topk: int, cluster: int) -> int:
    stages = ceil(topk / STAGE_KEYS)
    return ceil(stages / cluster)


def choose_cluster(tokens: int, heads: int, topk: int, capacity: Sequence[int]) -> int:
    clusters = tokens * ceil(heads / HEADS_PER_CLUSTER)

    def cost(cluster: int) -> tuple[int, int]:
        waves = ceil(clusters / capacity[cluster])
        return waves * (WAVE_COST_STAGES + stages_per_block(topk, cluster)), cluster

    return min((size for size in CLUSTER_SIZES if capacity[size] > 0), key=cost)
