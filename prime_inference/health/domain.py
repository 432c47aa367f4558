"""The NVL72 view: nodes that share a multi-node NVLink domain fail together. Pure.

One tray's fault breaks the memory handles of every prefill-decode pair that spans it, and NVML on the other trays may
show nothing (a GB200 domain fault was seen with GPU-side counters unmoved: marin-community/marin issue 8934). So a
domain is judged by all its nodes. A node that does not come back into it (`Check.FABRIC_JOIN`) fails alone.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from prime_inference.health.faults import State


@dataclass(frozen=True)
class NodeView:
    """What one agent says of its node."""

    node: str
    state: State
    domain: str | None
    """`cluster_uuid/clique` of its GPUs; None where they are in no domain, or do not agree."""
    fabric_ok: bool | None
    """None: unknown."""


@dataclass(frozen=True)
class DomainView:
    domain: str
    nodes: tuple[str, ...]
    failed: tuple[str, ...]
    state: State


def domains(views: Iterable[NodeView]) -> dict[str, DomainView]:
    """A domain is failed if a node's fabric is, degraded if a node is failed otherwise (its work moves; links stand)."""
    members: dict[str, list[NodeView]] = defaultdict(list)
    for view in views:
        if view.domain is not None:
            members[view.domain].append(view)
    found = {}
    for domain, nodes in members.items():
        broken = sorted(view.node for view in nodes if view.fabric_ok is False)
        failed = sorted(view.node for view in nodes if view.state is State.FAILED)
        state = State.FAILED if broken else State.DEGRADED if failed else State.HEALTHY
        names = tuple(sorted(view.node for view in nodes))
        found[domain] = DomainView(domain, names, tuple(sorted({*broken, *failed})), state)
    return found


def unhealthy(views: list[NodeView]) -> frozenset[str]:
    """Nodes that should serve nothing new: the failed ones, and every node of a domain whose fabric is broken."""
    failed = {view.node for view in views if view.state is State.FAILED}
    broken = [domain for domain in domains(views).values() if domain.state is State.FAILED]
    return frozenset(failed.union(*(domain.nodes for domain in broken)))
