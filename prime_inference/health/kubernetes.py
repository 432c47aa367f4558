"""What the agent and the fleet watch ask of Kubernetes: nodes and pods, over its HTTP API (no client library)."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from prime_inference.health.cordon import CONDITION, FABRIC_FAULT, TAINT_KEY, Cluster
from prime_inference.health.domain import NodeView
from prime_inference.health.faults import State

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
IN_CLUSTER = "https://kubernetes.default.svc"
WITHIN_S = 5.0
GROUP_LABELS = (
    ("grove.io/podcliquescalinggroup", "grove.io/podcliquescalinggroup-replica-index"),
    ("leaderworkerset.sigs.k8s.io/name", "leaderworkerset.sigs.k8s.io/group-index"),
)
"""By which Grove and LWS mark the pods of one multi-node worker."""
CLIQUE_LABEL = "nvidia.com/gpu.clique"
"""Multi-node NVLink domain of a node's GPUs, written by NVIDIA's GPU feature discovery."""
WORKERS = "prime-inference/role in (prefill,decode)"
"""Pods of the pools, by the labels the chart gives them."""
OVER = ("Succeeded", "Failed")
"""Phases of a pod that runs no more. An evicted one stays listed, with its node."""
NODES_LABEL = "prime-inference/nodes"
GPU_LABEL = "nvidia.com/gpu.present"
TAINT = {"key": TAINT_KEY, "effect": "NoSchedule"}
"""Its value is when it was set.

New pods stay away. What runs is drained by the gateway, not evicted: its streams may still end well."""


class KubernetesError(Exception):
    """The API server refused or did not answer; the message says which call and why."""


@dataclass(frozen=True)
class WorkerPod:
    """A pod of a deployment's pool."""

    name: str
    deployment: str
    role: str
    node: str
    group: str
    """Pods of one group are one worker over several nodes."""


class Kubernetes:
    def __init__(self, server: str | None = None, service_account: Path = SERVICE_ACCOUNT) -> None:
        token = service_account / "token"
        authority = service_account / "ca.crt"
        self._token = token if token.is_file() else None
        self._http = httpx.Client(
            base_url=server or IN_CLUSTER,
            timeout=WITHIN_S,
            verify=str(authority) if authority.is_file() and server is None else True,
        )

    def close(self) -> None:
        self._http.close()

    def cluster(self) -> Cluster:
        """Nodes with GPUs, and which of them carry our taint."""
        nodes = self._ask("GET", "/api/v1/nodes", params={"labelSelector": f"{GPU_LABEL}=true"})["items"]
        tainted = {n["metadata"]["name"]: _since(taint) for n in nodes for taint in _our_taints(n)}
        return Cluster(frozenset(n["metadata"]["name"] for n in nodes), tainted)

    def set_condition(
        self, node: str, healthy: bool, reason: str, message: str, now: float, changed: bool = True
    ) -> None:
        """Strategic merge: conditions merge by their type, so others' stay, and so does what is not named: the time of the
        last change, unless `changed`."""
        at = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        condition = {
            "type": CONDITION,
            "status": "True" if healthy else "False",
            "reason": reason,
            "message": message[:1024],
            "lastHeartbeatTime": at,
        }
        if changed:
            condition["lastTransitionTime"] = at
        kind = "application/strategic-merge-patch+json"
        self._ask("PATCH", f"/api/v1/nodes/{node}/status", {"status": {"conditions": [condition]}}, kind)

    def set_taint(self, node: str, since: float | None) -> None:
        """Since these Unix seconds; None takes it off. Guarded by the version that was read: two writers' taints never
        overwrite each other."""
        current = self._ask("GET", f"/api/v1/nodes/{node}")
        taints = [t for t in current.get("spec", {}).get("taints") or [] if t["key"] != TAINT_KEY]
        body = {
            "metadata": {"resourceVersion": current["metadata"]["resourceVersion"]},
            "spec": {"taints": taints if since is None else [*taints, {**TAINT, "value": str(int(since * 1000))}]},
        }
        self._ask("PATCH", f"/api/v1/nodes/{node}", body, "application/merge-patch+json")

    def workers(self, namespace: str) -> list[WorkerPod]:
        """Pods of prefill and decode pools, by the labels the chart gives them."""
        pods = self._ask("GET", f"/api/v1/namespaces/{namespace}/pods", params={"labelSelector": WORKERS})
        return [
            WorkerPod(
                name=pod["metadata"]["name"],
                deployment=pod["metadata"]["labels"]["prime-inference/deployment"],
                role=pod["metadata"]["labels"]["prime-inference/role"],
                node=pod["spec"].get("nodeName", ""),
                group=_group(pod),
            )
            for pod in pods["items"]
            if pod.get("status", {}).get("phase") not in OVER
        ]

    def addresses_on(self, node: str, namespace: str) -> frozenset[str]:
        """Of the pools' pods that run there."""
        params = {"labelSelector": WORKERS, "fieldSelector": f"spec.nodeName={node}"}
        pods = self._ask("GET", f"/api/v1/namespaces/{namespace}/pods", params=params)["items"]
        return frozenset(pod["status"]["podIP"] for pod in pods if pod.get("status", {}).get("podIP"))

    def node_views(self) -> list[NodeView]:
        """Every node as its agent's condition and NVIDIA's clique label have it."""
        views = []
        for node in self._ask("GET", "/api/v1/nodes")["items"]:
            metadata = node["metadata"]
            said = next((c for c in node.get("status", {}).get("conditions") or [] if c["type"] == CONDITION), None)
            failed = said is not None and said["status"] == "False"
            views.append(
                NodeView(
                    node=metadata["name"],
                    state=State.FAILED if failed else State.HEALTHY,
                    domain=metadata.get("labels", {}).get(CLIQUE_LABEL),
                    fabric_ok=None if said is None else not (failed and said["reason"] == FABRIC_FAULT),
                )
            )
        return views

    def _ask(
        self, method: str, path: str, body: Any = None, kind: str = "", params: dict[str, str] | None = None
    ) -> Any:
        headers = {"Content-Type": kind} if kind else {}
        if self._token is not None:
            # Read at each call: the kubelet replaces it every hour.
            headers["Authorization"] = f"Bearer {self._token.read_text().strip()}"
        content = None if body is None else json.dumps(body)
        try:
            answer = self._http.request(method, path, content=content, headers=headers, params=params)
            answer.raise_for_status()
            return answer.json()
        except (httpx.HTTPError, OSError, ValueError) as error:
            raise KubernetesError(f"{method} {path}: {type(error).__name__}: {error}") from error


def _group(pod: dict[str, Any]) -> str:
    labels = pod["metadata"]["labels"]
    for name, index in GROUP_LABELS:
        if index in labels:
            return f"{labels.get(name, '')}/{labels[index]}"
    # A worker of several nodes under a scheduler we do not know: the pool counts as one worker, which errs to draining.
    return "all" if labels.get(NODES_LABEL, "1") != "1" else str(pod["metadata"]["name"])


def _our_taints(node: dict[str, Any]) -> list[dict[str, Any]]:
    return [taint for taint in node.get("spec", {}).get("taints") or [] if taint["key"] == TAINT_KEY]


def _since(taint: dict[str, Any]) -> int | None:
    value = str(taint.get("value", ""))
    return int(value) if value.isdigit() else None
