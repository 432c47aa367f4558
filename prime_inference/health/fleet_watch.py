"""`prime-inference health fleet`: beside each gateway replica, rewrites its fleet file as nodes fail and heal.

Reads the fleet as Helm wrote it, the pools' pods and the nodes' conditions; writes the file the gateway watches. A
Kubernetes that cannot be asked changes nothing: the last file stays.
"""

import logging
import os
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

from prime_inference.health.domain import unhealthy as unhealthy_of
from prime_inference.health.kubernetes import Kubernetes, KubernetesError, WorkerPod
from prime_inference.health.rotation import NOWHERE, Pool, Why, Worker, drained, missed, reason_to_drain

log = logging.getLogger("prime_inference.health")


class NoFleet(Exception):
    """The deployed fleet file cannot be read; the message says why."""


class FleetWatch:
    def __init__(self, kubernetes: Kubernetes, namespace: str, source: Path, target: Path) -> None:
        self._kubernetes = kubernetes
        self._namespace = namespace
        self._source = source
        self._target = target
        self._most: dict[Pool, int] = {}

    def look(self) -> frozenset[str]:
        """One look; the names of the deployments that should leave. Writes only what differs. Raises NoFleet."""
        fleet = self._deployed()
        try:
            pods = self._kubernetes.workers(self._namespace)
            unhealthy = unhealthy_of(self._kubernetes.node_views()) | {NOWHERE}
        except KubernetesError as error:
            log.warning("cannot ask Kubernetes: %s", error)
            if not self._target.exists():
                self._write(yaml.safe_dump(fleet, sort_keys=False))
            return frozenset()
        workers, self._most = missed(workers_of(pods), self._most)
        why = {d["name"]: reason_to_drain(d["name"], workers, unhealthy) for d in fleet["deployments"]}
        leaving = frozenset(name for name, reason in why.items() if reason is not Why.STAYS)
        self._write(yaml.safe_dump(drained(fleet, leaving), sort_keys=False))
        return leaving

    def look_again(self) -> None:
        """A source that is no fleet any more changes nothing: the last file stays."""
        try:
            self.look()
        except NoFleet as error:
            log.error("%s", error)

    def _deployed(self) -> dict[str, Any]:
        try:
            fleet = yaml.safe_load(self._source.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise NoFleet(f"{self._source}: {error}") from error
        if not isinstance(fleet, dict) or not all(
            isinstance(fleet.get(key), list) for key in ("models", "deployments")
        ):
            raise NoFleet(f"{self._source}: no fleet file: it has no lists of models and deployments")
        return fleet

    def _write(self, text: str) -> None:
        if self._target.exists() and self._target.read_text(encoding="utf-8") == text:
            return
        temporary = self._target.with_suffix(".new")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, self._target)
        log.warning("fleet file written")

    def run(self, interval_s: float, stop: threading.Event) -> None:
        """Raises NoFleet if there is none to begin with."""
        self.look()
        while not stop.wait(interval_s):
            self.look_again()


def workers_of(pods: list[WorkerPod]) -> list[Worker]:
    nodes: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for pod in pods:
        nodes[pod.deployment, pod.role, pod.group].add(pod.node or NOWHERE)
    return [Worker(deployment, role, frozenset(names)) for (deployment, role, _), names in nodes.items()]
