"""The agent's page: /metrics for Prometheus, /healthz for the kubelet, /v1/node for whoever routes.

Standard library only: the agent's image carries no web framework, and three GETs need none.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prime_inference.health.agent import Agent
from prime_inference.health.faults import State
from prime_inference.health.verdicts import Severity, Verdict

SCHEMA = 1
"""Of /v1/node. A reader that does not know it takes the node's state as unknown."""


def node_of(agent: Agent) -> dict[str, object]:
    view = agent.view()
    return {
        "schema": SCHEMA,
        "node": agent.node,
        "state": view.state.value,
        "domain": view.domain,
        "fabric_ok": view.fabric_ok,
        "as_of": agent.last_round_at,
        "faults": [
            {
                "check": fault.check.value,
                "entity": fault.entity,
                "severity": fault.severity.value,
                "detail": fault.detail,
                "opened_at": fault.opened_at,
                "last_bad_at": fault.last_bad_at,
                "times": fault.times,
            }
            for fault in agent.faults.now_open()
        ],
    }


def metrics_of(agent: Agent) -> str:
    """Prometheus text. Label sets are closed: checks and verdicts are enums, entities are this node's parts.

    Each sample names its node: an agent has a pod's address, by which nobody finds a machine.
    """
    lines = []

    def metric(name: str, kind: str, help_text: str, samples: list[tuple[dict[str, str], float]]) -> None:
        lines.append(f"# HELP {name} {help_text}")
        lines.append(f"# TYPE {name} {kind}")
        for labels, value in samples:
            named = {"node": agent.node, **labels}
            shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in named.items())
            # In full: a timestamp rounded to six digits is hours off.
            lines.append(f"{name}{{{shown}}} {float(value)!r}")

    state = agent.state()
    metric(
        "prime_health_node_state",
        "gauge",
        "1 for the state this node is in.",
        [({"state": s.value}, float(s is state)) for s in State],
    )
    counts: dict[tuple[str, str], int] = {}
    for finding in agent.findings:
        key = (finding.check.value, finding.verdict.value)
        counts[key] = counts.get(key, 0) + 1
    checks = sorted({check for check, _ in counts})
    metric(
        "prime_health_findings",
        "gauge",
        "Verdicts of the last round, by check.",
        [
            ({"check": check, "verdict": verdict.value}, counts.get((check, verdict.value), 0))
            for check in checks
            for verdict in Verdict
        ],
    )
    metric(
        "prime_health_open_fault",
        "gauge",
        "1 while a fault is open.",
        [
            ({"check": f.check.value, "entity": f.entity, "severity": f.severity.value}, 1.0)
            for f in agent.faults.now_open()
        ],
    )
    metric(
        "prime_health_open_faults",
        "gauge",
        "Open faults, by severity.",
        [({"severity": s.value}, sum(f.severity is s for f in agent.faults.now_open())) for s in Severity],
    )
    metric(
        "prime_health_probe_total",
        "counter",
        "Questions to a source, by how they ended.",
        [({"source": name, "ending": end.value}, n) for (name, end), n in sorted(list(agent.probe_endings.items()))],
    )
    if agent.kubernetes_told is not None:
        metric(
            "prime_health_kubernetes_told",
            "gauge",
            "1 for how the last word to Kubernetes ended.",
            [
                ({"told": told}, float(told == agent.kubernetes_told))
                for told in ("written", "over_budget", "unreachable")
            ],
        )
    metric("prime_health_rounds_total", "counter", "Rounds of checks.", [({}, agent.rounds)])
    metric(
        "prime_health_last_round_timestamp_seconds",
        "gauge",
        "When the last round began.",
        [({}, agent.last_round_at or 0.0)],
    )
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class Page:
    """Serves from a thread of its own, so that it answers while a round waits for a driver."""

    def __init__(self, agent: Agent, host: str, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._say(200, metrics_of(agent), "text/plain; version=0.0.4; charset=utf-8")
                elif self.path == "/v1/node":
                    self._say(200, json.dumps(node_of(agent)), "application/json")
                elif self.path == "/healthz":
                    alive = agent.alive()
                    self._say(200 if alive else 503, json.dumps({"alive": alive}), "application/json")
                else:
                    self._say(404, '{"error":"not found"}', "application/json")

            def _say(self, status: int, body: str, kind: str) -> None:
                content = body.encode()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Scrapes are no news."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="page", daemon=True)

    def __enter__(self) -> "Page":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
