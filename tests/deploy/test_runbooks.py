"""The runbooks at three in the morning: a section for each alert with its four parts, and commands that are real. What can be
run is run (tests/local/test_runbooks.py); the rest is read by what it is for: helm, our command line, the rendered objects."""

import re
import shlex
import subprocess
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import typer

from gateway.accounts.keys import Scope, load_keys
from gateway.admin.actions import ACTION
from prime_inference.cli import COMMANDS_GROUP, build
from tests.conftest import needs_on_ci
from tests.deploy.rendered import PRESETS, ROOT, has_module, helm_binary, pod_labels, pods, rendered, template
from tests.deploy.runbook import blocks, orders, queries, sections
from tests.deploy.test_alerts import orphans, rules

PRESET = "glm-5.3-gb200"


def test_each_alert_has_a_section_that_names_it_and_says_how_to_see_decide_act_and_verify() -> None:
    alerts = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in rules() if "alert" in rule}
    named = {alert: section.anchor for section in sections() for alert in section.alerts}
    assert {alert: f"RUNBOOK#{anchor}" for alert, anchor in named.items()} == alerts
    for section in sections():
        for part in ("see", "decide", "act", "verify"):
            assert re.search(rf"\*\*{part}\*\*", section.text, re.IGNORECASE), (section.heading, part)


def test_links_within_the_runbooks_lead_somewhere() -> None:
    anchors = {section.anchor for section in sections()}
    for section in sections():
        for anchor in re.findall(r"\]\(#([^)]+)\)", section.text):
            assert anchor in anchors, (section.heading, anchor)


def test_every_query_parses_and_names_a_metric_that_somebody_writes() -> None:
    needs_on_ci(
        has_module("promql_parser") and has_module("vllm") and has_module("dynamo"), "promql-parser and engines"
    )
    assert len(queries()) > 30
    assert orphans(queries()) == set()


def test_every_order_is_one_the_gateway_takes() -> None:
    assert len(orders()) >= 10
    for line in orders():
        _, _, flag, body = shlex.split(line)
        assert flag == "-d"
        ACTION.validate_json(body)


def test_every_change_of_values_renders() -> None:
    needs_on_ci(helm_binary() is not None, "helm")
    changes = [line for line in blocks("sh") if line.startswith("helm upgrade")]
    assert len(changes) >= 4
    for line in changes:
        words = shlex.split(line)
        assert words[2:4] == ["prime", "deploy/helm/prime-inference"]
        assert "--reuse-values" in words
        run = template(PRESET, "--set", words[words.index("--set") + 1])
        assert run.returncode == 0, (line, run.stderr)


def test_every_command_of_ours_parses() -> None:
    lines = [line for line in blocks("sh") if "prime-inference " in line and " -- " in line]
    assert len(lines) >= 3
    command = typer.main.get_command(build(list(entry_points(group=COMMANDS_GROUP)), None))
    for line in lines:
        words = shlex.split(line.partition(" -- ")[2])
        words = words[words.index("prime-inference") + 1 :]
        group: Any = command
        while hasattr(group, "commands"):
            group = group.commands[words.pop(0)]
        group.make_context("prime-inference", words)


@pytest.mark.parametrize("line", [line for line in blocks("sh") if line.startswith("kubectl -n inference")])
def test_every_object_that_kubectl_is_asked_about_is_rendered(line: str) -> None:
    needs_on_ci(helm_binary() is not None, "helm")
    documents = [document for preset in PRESETS for document in rendered(preset)]
    kinds = {"Deployment": "deploy", "DaemonSet": "ds", "StatefulSet": "sts", "ConfigMap": "configmap"}
    names = {f"{kinds.get(d['kind'], d['kind'].lower())}/{d['metadata']['name']}" for d in documents}
    # A StatefulSet's pods are numbered.
    names |= {
        f"pod/{d['metadata']['name']}-{n}"
        for d in documents
        if d["kind"] == "StatefulSet"
        for n in range(d["spec"]["replicas"])
    }
    command = line.split(" | ", maxsplit=1)[0].partition(" -- ")[0]
    for name in re.findall(r"\b((?:deploy|ds|sts)/[\w-]+)", command):
        assert name in names
    for kind, name in re.findall(r"\b(dynamographdeployment|configmap|ds) (prime-[\w-]+)", command):
        assert f"{kind}/{name}" in names
    for name in re.findall(r"exec (prime-[\w-]+)", command):
        assert f"pod/{name}" in names
    if selector := re.search(r"-l '?([^' ]+ in \([^)]+\)|[^' ]+)'?", command):
        assert_selects(selector[1], documents)
    if container := re.search(r" -c (\S+)", command):
        found = [each for document in documents for each in pods(document)]
        assert container[1] in {c["name"] for _, p in found for c in [*p.get("initContainers", []), *p["containers"]]}


def assert_selects(selector: str, documents: list[dict[str, Any]]) -> None:
    """Some pod that the chart renders carries these labels; the operator's own are its to set."""
    if selector.startswith("nvidia.com/metrics-enabled"):
        return
    labels = [have for document in documents for have in pod_labels(document)]
    if several := re.fullmatch(r"(\S+) in \((.*)\)", selector):
        for value in several[2].split(","):
            assert any(have.get(several[1]) == value for have in labels), value
        return
    wanted = dict(part.split("=") for part in selector.split(",")).items()
    assert any(wanted <= have.items() for have in labels), selector


def test_the_key_that_the_page_of_operations_makes_is_one_the_gateway_takes(tmp_path: Path) -> None:
    lines = (ROOT / "docs/operations.md").read_text().splitlines()
    make = [line for line in lines if line.startswith(("ADMIN_KEY=", "printf 'keys:"))]
    assert len(make) == 2
    run = subprocess.run(
        ["bash", "-euc", "\n".join([*make, 'printf %s "$ADMIN_KEY"'])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    caller = load_keys(tmp_path / "keys.yaml").caller_of(run.stdout)
    assert caller is not None
    assert caller.scopes == {Scope.ADMIN}
