"""May this node take itself out? Pure.

A budget, because a bad rule or a site-wide event makes every agent want to at once: NVIDIA's NVSentinel stops at half
of the nodes and waits for a person; ours stops much earlier, and a node past the budget stays in service and pages.
"""

from dataclasses import dataclass
from enum import StrEnum

TAINT_KEY = "prime-inference/unhealthy"
CONDITION = "PrimeInferenceHealthy"
FABRIC_FAULT = "FabricFault"
"""The condition's reason when what failed is shared with the node's NVLink domain."""


class Decision(StrEnum):
    KEEP = "keep"
    """Nothing to change."""
    CORDON = "cordon"
    UNCORDON = "uncordon"
    OVER_BUDGET = "over_budget"
    """Failed, and too many others are out already."""


@dataclass(frozen=True)
class Budget:
    max_nodes: int
    max_share: float


@dataclass(frozen=True)
class Cluster:
    """Nodes with GPUs, and those of them that carry our taint."""

    nodes: frozenset[str]
    tainted: frozenset[str]


def decide(node: str, failed: bool, cluster: Cluster, budget: Budget) -> Decision:
    out = node in cluster.tainted
    if not failed:
        return Decision.UNCORDON if out else Decision.KEEP
    if out:
        return Decision.KEEP
    after = len(cluster.tainted) + 1
    # One node may always go out of a small cluster, unless the budget is none at all.
    share_allows = after <= max(1, int(budget.max_share * len(cluster.nodes)))
    if budget.max_nodes == 0 or budget.max_share == 0 or after > budget.max_nodes or not share_allows:
        return Decision.OVER_BUDGET
    return Decision.CORDON
