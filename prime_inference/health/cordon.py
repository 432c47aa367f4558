"""May this node take itself out? Pure.

A budget, because a bad rule or a site-wide event makes every agent want to at once: NVIDIA's NVSentinel stops at half
of the nodes and waits for a person; ours stops much earlier, and a node past the budget stays in service and pages.

Agents do not ask each other. Each taints its node with the time and looks again: of more taints than the budget allows
the earliest stay, in an order that all agents see alike, and the others give way.
"""

from collections.abc import Mapping
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
    GIVE_WAY = "give_way"
    """Failed and tainted, but others were first, and together they are too many."""


@dataclass(frozen=True)
class Budget:
    max_nodes: int
    max_share: float

    def of(self, nodes: int) -> int:
        """How many of so many nodes may be out. One may always go out of a small cluster, unless the budget is none."""
        if self.max_nodes == 0 or self.max_share == 0:
            return 0
        return min(self.max_nodes, max(1, int(self.max_share * nodes)))


@dataclass(frozen=True)
class Cluster:
    """Nodes with GPUs, and those of them that carry our taint."""

    nodes: frozenset[str]
    tainted: Mapping[str, int | None]
    """Since when, in milliseconds; None where a person set it, whom no budget binds."""


def decide(node: str, failed: bool, cluster: Cluster, budget: Budget) -> Decision:
    out = node in cluster.tainted
    if not failed:
        return Decision.UNCORDON if out else Decision.KEEP
    allowed = budget.of(len(cluster.nodes))
    if not out:
        return Decision.CORDON if len(cluster.tainted) < allowed else Decision.OVER_BUDGET
    ours = sorted((since, name) for name, since in cluster.tainted.items() if since is not None)
    first = {name for _, name in ours[:allowed]}
    return Decision.KEEP if node in first or cluster.tainted[node] is None else Decision.GIVE_WAY
