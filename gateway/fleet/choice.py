"""Which deployment and which of its frontends a session asks, and in which order the rest: pure.

Rendezvous hashing: each (session, target) pair has a score; the highest wins. When a target goes, only its own sessions
move; when it returns, exactly those come back, to the cache they left. Session bindings inside Dynamo live in one
frontend, so a session must keep to one frontend (ai-dynamo/dynamo issue 11035: affinity scatters across replicas).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b

from gateway.fleet.registry import Deployment, Model

MAX_TARGETS = 3
"""Attempts a request may make in all: enough to leave a dead frontend and a dead deployment behind, few enough that a
request every deployment refuses does not multiply its load."""


@dataclass(frozen=True)
class Target:
    """One frontend of one deployment."""

    deployment: Deployment
    frontend: str


def score(session: str, target: str) -> int:
    return int.from_bytes(blake2b(f"{session}\0{target}".encode(), digest_size=8).digest(), "big")


def by_score(session: str, names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: score(session, name), reverse=True)


def targets(model: Model, session: str) -> list[Target]:
    """Where this session's attempts go, in order: its own deployment's frontend first, then other deployments by
    priority, then the remaining frontends of the first."""
    ordered = sorted(model.deployments, key=lambda d: (d.priority, -score(session, d.name)))
    first_frontends: list[Target] = []
    others: list[Target] = []
    for deployment in ordered:
        frontends = by_score(session, deployment.frontends)
        first_frontends.append(Target(deployment, frontends[0]))
        others.extend(Target(deployment, frontend) for frontend in frontends[1:])
    return (first_frontends + others)[:MAX_TARGETS]
