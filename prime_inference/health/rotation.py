"""Which deployments leave the gateway's rotation because of their nodes: pure.

A worker on an unhealthy node may answer wrongly with a 200, so its pool's healthy part must carry the load. A
deployment is drained when a pool has no worker left on a healthy node, or less than `MIN_SHARE` of its workers;
otherwise Dynamo goes on and people are paged. A multi-node worker is one worker: it is as healthy as its worst node.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

MIN_SHARE = 0.5
"""With fewer of a pool's workers than this, the others' queues make every answer late: another deployment is better."""


NOWHERE = ""
"""The node of a pod that has none."""

Pool: TypeAlias = tuple[str, str]
"""Deployment and role."""


class Why(StrEnum):
    STAYS = "stays"
    NO_PREFILL = "no_prefill"
    NO_DECODE = "no_decode"
    TOO_FEW = "too_few"


@dataclass(frozen=True)
class Worker:
    deployment: str
    role: str
    nodes: frozenset[str]


def missed(workers: Iterable[Worker], most: Mapping[Pool, int]) -> tuple[list[Worker], dict[Pool, int]]:
    """The workers that count, and the most that each pool has had: `most` of the next look.

    A worker that waits for a node is missed where the pool has had as many before. Where it never had, the pool grows, and
    those that serve meanwhile are all it needs. One that waits counts where nobody serves.
    """
    pools: dict[Pool, list[Worker]] = defaultdict(list)
    for worker in workers:
        pools[worker.deployment, worker.role].append(worker)
    counted: list[Worker] = []
    had: dict[Pool, int] = {}
    for pool, members in pools.items():
        placed = [worker for worker in members if NOWHERE not in worker.nodes]
        waiting = [worker for worker in members if NOWHERE in worker.nodes]
        had[pool] = min(len(members), max(len(placed), most.get(pool, 0)))
        counted += [*placed, *waiting[: max(had[pool], 1) - len(placed)]]
    return counted, had


def reason_to_drain(deployment: str, workers: Iterable[Worker], unhealthy: frozenset[str]) -> Why:
    mine = [worker for worker in workers if worker.deployment == deployment]
    for role, none_left in (("prefill", Why.NO_PREFILL), ("decode", Why.NO_DECODE)):
        pool = [worker for worker in mine if worker.role == role]
        well = [worker for worker in pool if not worker.nodes & unhealthy]
        if pool and not well:
            return none_left
        if pool and len(well) < MIN_SHARE * len(pool):
            return Why.TOO_FEW
    return Why.STAYS


def drained(fleet: dict[str, Any], leaving: frozenset[str]) -> dict[str, Any]:
    """The gateway's fleet file with these deployments draining, unless that would leave a model with none.

    Worse than a deployment that may fail is a model nobody serves: the last one stays, whatever its nodes say.
    """
    changed = deepcopy(fleet)
    draining = {d["name"] for d in fleet["deployments"] if d.get("draining")}
    for name in sorted(leaving - draining):
        others = draining | {name}
        if any(not set(model["deployments"]) - others for model in fleet["models"] if name in model["deployments"]):
            continue
        draining.add(name)
    for deployment in changed["deployments"]:
        if deployment["name"] in draining:
            deployment["draining"] = True
    return changed
