"""Which deployment and which of its frontends a session asks, and in which order the rest: pure.

Weighted rendezvous hashing: each (session, target) pair has a score; the highest wins. When a target goes, only its own
sessions move; when it returns, exactly those come back, to the cache they left. A deployment's weight is its share of the
sessions. Session bindings inside Dynamo live in one frontend, so a session must keep to one frontend (ai-dynamo/dynamo
issue 11035: affinity scatters across replicas).

The session's own deployment comes first, whatever its state: whether it may be asked is for its breaker and its capacity
to say. Behind it: no overflow, priority, health, free capacity, and then the session's own order again, so that it also
finds its second home each time.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b

from gateway.fleet.registry import Deployment, Model

SCORE_SPAN = 2**64


class Standing(IntEnum):
    """How a deployment looks from this replica; better first."""

    FREE = 0
    SCARCE = 1
    CLOSED_OFF = 2
    """Its breaker is open or is being probed."""


@dataclass(frozen=True)
class Target:
    """One frontend of one deployment."""

    deployment: Deployment
    frontend: str


def score(session: str, target: str) -> int:
    return int.from_bytes(blake2b(f"{session}\0{target}".encode(), digest_size=8).digest(), "big")


def weighted(session: str, deployment: Deployment) -> float:
    """Highest wins; of two deployments one wins as often as its share of both weights."""
    if deployment.weight == 0:
        return -math.inf
    return deployment.weight / -math.log((score(session, deployment.name) + 0.5) / SCORE_SPAN)


def by_score(session: str, names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: score(session, name), reverse=True)


def targets(model: Model, session: str, standing: Callable[[str], Standing] = lambda _: Standing.FREE) -> list[Target]:
    """Where this session's attempts may go, in order: each deployment's frontend of this session, then the remaining
    frontends in the same order. Draining deployments are not among them."""
    willing = [deployment for deployment in model.deployments if not deployment.draining]
    if len(willing) > 1:
        willing.sort(key=lambda each: (each.overflow, each.priority, -weighted(session, each)))
        own, *rest = willing
        rest.sort(key=lambda each: (each.overflow, each.priority, standing(each.name), -weighted(session, each)))
        willing = [own, *rest]
    first_frontends: list[Target] = []
    others: list[Target] = []
    for deployment in willing:
        frontends = by_score(session, deployment.frontends) if len(deployment.frontends) > 1 else deployment.frontends
        first_frontends.append(Target(deployment, frontends[0]))
        others.extend(Target(deployment, frontend) for frontend in frontends[1:])
    return first_frontends + others
