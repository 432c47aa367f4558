"""A Kubernetes API server for tests: nodes and pods over real HTTP, with merge patches, conflicts and label selectors.

Nothing is scheduled or evicted here. What it stands for is what an agent and a fleet watch can see and write.
"""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.support.listening import listening

Object = dict[str, Any]


@dataclass
class Cluster:
    """The state; tests read and write it directly."""

    url: str = ""
    nodes: dict[str, Object] = field(default_factory=dict)
    pods: list[Object] = field(default_factory=list)
    patches: list[tuple[str, Object]] = field(default_factory=list)
    refuses: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add_node(self, name: str) -> None:
        labels = {"nvidia.com/gpu.present": "true"}
        metadata = {"name": name, "labels": labels, "resourceVersion": "1"}
        self.nodes[name] = {"metadata": metadata, "spec": {}, "status": {"conditions": [{"type": "Ready"}]}}

    def add_worker(self, deployment: str, role: str, node: str, **labels: str) -> None:
        ours = {"prime-inference/deployment": deployment, "prime-inference/role": role, **labels}
        name = f"{deployment}-{role}-{len(self.pods)}"
        self.pods.append({"metadata": {"name": name, "labels": ours}, "spec": {"nodeName": node}})

    def condition(self, node: str) -> str | None:
        found = [c for c in self.nodes[node]["status"]["conditions"] if c["type"] == "PrimeInferenceHealthy"]
        return found[0]["status"] if found else None

    def tainted(self, node: str) -> bool:
        return any(t["key"] == "prime-inference/unhealthy" for t in self.nodes[node]["spec"].get("taints", []))


def selected(entries: list[Object], selector: str) -> list[Object]:
    """`key=value` and `key in (a,b)`, the two forms our client uses."""
    if not selector:
        return entries
    several = re.fullmatch(r"(\S+) in \((.*)\)", selector)
    if several:
        key, wanted = several[1], set(several[2].split(","))
    else:
        key, _, value = selector.partition("=")
        wanted = {value}
    return [entry for entry in entries if entry["metadata"].get("labels", {}).get(key) in wanted]


def merge(into: Object, patch: Object) -> None:
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


@contextmanager
def kubernetes() -> Iterator[Cluster]:
    cluster = Cluster()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            selector = parse_qs(url.query).get("labelSelector", [""])[0]
            with cluster.lock:
                if cluster.refuses:
                    self._say(503, {"message": "refused"})
                elif url.path == "/api/v1/nodes":
                    self._say(200, {"items": selected(list(cluster.nodes.values()), selector)})
                elif url.path.endswith("/pods"):
                    self._say(200, {"items": selected(cluster.pods, selector)})
                elif (name := url.path.removeprefix("/api/v1/nodes/")) in cluster.nodes:
                    self._say(200, cluster.nodes[name])
                else:
                    self._say(404, {"message": "not found"})

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            name, _, part = urlsplit(self.path).path.removeprefix("/api/v1/nodes/").partition("/")
            with cluster.lock:
                node = cluster.nodes.get(name)
                if cluster.refuses or node is None:
                    self._say(503 if cluster.refuses else 404, {"message": "refused"})
                    return
                version = body.get("metadata", {}).pop("resourceVersion", None)
                if version not in (None, node["metadata"]["resourceVersion"]):
                    self._say(409, {"message": "conflict"})
                    return
                cluster.patches.append((self.path, body))
                if part == "status":
                    # Strategic merge: conditions by their type, and what one does not name stays.
                    kept = {c["type"]: c for c in node["status"]["conditions"]}
                    kept |= {c["type"]: {**kept.get(c["type"], {}), **c} for c in body["status"]["conditions"]}
                    node["status"]["conditions"] = list(kept.values())
                else:
                    merge(node, body)
                node["metadata"]["resourceVersion"] = str(int(node["metadata"]["resourceVersion"]) + 1)
                self._say(200, node)

        def _say(self, status: int, body: Object) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with listening(Handler) as cluster.url:
        yield cluster
