"""What the chart promises an operator, sentence by sentence, judged in what Helm renders."""

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from gateway.fleet.registry import load_fleet
from tests.conftest import needs_on_ci
from tests.deploy.rendered import (
    CHART,
    PRESETS,
    Object,
    containers,
    has_module,
    helm,
    helm_binary,
    pod_labels,
    pods,
    rendered,
    template,
)
from tests.deploy.test_alerts import ours

MAPS = {"global", "labels", "annotations", "nodeSelector"}
"""Names in these are the operator's own. Every other mapping has known keys, or keys that a pattern judges."""


REFERRED = (("persistentVolumeClaim", "claimName"), ("secret", "secretName"))


def of(documents: list[Object], kind: str, name: str) -> Object:
    (found,) = [d for d in documents if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return found


def changed(preset: str, *settings: str) -> list[Object]:
    needs_on_ci(helm_binary() is not None, "helm")
    run = template(preset, *[option for setting in settings for option in ("--set", setting)])
    assert run.returncode == 0, run.stderr
    return [document for document in yaml.safe_load_all(run.stdout) if document]


def merged(below: Any, above: Any) -> Any:
    """As Helm lays a values file over another."""
    if isinstance(below, dict) and isinstance(above, dict):
        return below | {key: merged(below[key], value) if key in below else value for key, value in above.items()}
    return above


def mappings(node: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(node, dict):
        yield at
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in children:
        yield from mappings(value, (*at, key))


@pytest.mark.parametrize("name", PRESETS)
def test_a_typo_at_any_level_of_the_values_is_refused(name: str) -> None:
    schema = Draft202012Validator(yaml.safe_load((CHART / "values.schema.json").read_text()))
    files = (CHART / "values.yaml", CHART / f"values-{name}.yaml")
    values = merged(*(yaml.safe_load(path.read_text()) for path in files))
    assert schema.is_valid(values)
    places = list(mappings(values))
    assert len(places) > 60
    taken = []
    for place in places:
        mistaken = copy.deepcopy(values)
        node = mistaken
        for key in place:
            node = node[key]
        node["replicaz"] = "x"
        if schema.is_valid(mistaken):
            taken.append(place)
    assert [place for place in taken if place[-1] not in MAPS] == []


def test_the_router_policy_has_the_keys_that_dynamo_knows() -> None:
    needs_on_ci(has_module("dynamo"), "dynamo")
    from dynamo.common.configuration.groups.kv_router_args import _ROUTER_SETTINGS

    policy = yaml.safe_load((CHART / "values.schema.json").read_text())["$defs"]["routerPolicy"]
    assert set(policy["properties"]["router"]["properties"]) == set(_ROUTER_SETTINGS)


def test_the_gateway_grows_by_metrics_of_its_own_page() -> None:
    needs_on_ci(helm_binary() is not None, "helm")
    scaler = of(rendered("glm-5.3-gb200"), "HorizontalPodAutoscaler", "prime-gateway")["spec"]
    assert scaler["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "prime-gateway"}
    names = {metric["pods"]["metric"]["name"] for metric in scaler["metrics"]}
    assert names == {"prime_gateway_in_flight_requests", "prime_gateway_waiting_requests"}
    assert names <= ours()
    assert "replicas" not in of(rendered("glm-5.3-gb200"), "Deployment", "prime-gateway")["spec"]


def test_the_gateway_is_spread_budgeted_and_replaced_one_at_a_time() -> None:
    documents = rendered("glm-5.3-gb200")
    deployment = of(documents, "Deployment", "prime-gateway")["spec"]
    labels = deployment["template"]["metadata"]["labels"].items()
    budget = of(documents, "PodDisruptionBudget", "prime-gateway")["spec"]
    assert budget["maxUnavailable"] == 1
    spreads = deployment["template"]["spec"]["topologySpreadConstraints"]
    assert {spread["topologyKey"] for spread in spreads} == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}
    for selector in (budget["selector"], *(spread["labelSelector"] for spread in spreads)):
        assert selector["matchLabels"].items() <= labels
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    alone = {d["metadata"]["name"] for d in rendered("local") if d["kind"] == "PodDisruptionBudget"}
    assert alone == set(), "with one replica a budget only blocks node drains"


def test_a_gateway_that_leaves_outlives_the_longest_stream(preset: str) -> None:
    pod = of(rendered(preset), "Deployment", "prime-gateway")["spec"]["template"]["spec"]
    (gateway,) = pod["containers"]
    env = {entry["name"]: entry.get("value") for entry in gateway["env"]}
    longest, drain = (float(env[f"PRIME_GATEWAY_{name}_SECONDS"]) for name in ("TOTAL_TIMEOUT", "DRAIN"))
    before = gateway["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert before >= 1
    assert longest <= drain
    assert before + drain < pod["terminationGracePeriodSeconds"]


def test_monitors_and_network_policies_name_ports_that_exist(preset: str) -> None:
    documents = rendered(preset)
    services = [d for d in documents if d["kind"] == "Service"]
    for monitor in (d for d in documents if d["kind"] == "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        ports = {p["name"] for s in services if wanted <= s["metadata"]["labels"].items() for p in s["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= ports
    labels = [have for document in documents for have in pod_labels(document)]
    specs = [pod for document in documents if pod_labels(document) for _, pod in pods(document)]
    labelled = list(zip(labels, specs, strict=True))
    policies = [d for d in documents if d["kind"] == "NetworkPolicy"]
    agents = {"prime-agent"} if "prime-agent" in {d["metadata"]["name"] for d in documents} else set()
    assert {d["metadata"]["name"] for d in policies} == {"prime-gateway", "prime-control", "prime-engines"} | agents
    for policy in policies:
        wanted = policy["spec"]["podSelector"]["matchLabels"].items()
        selected = [pod for have, pod in labelled if wanted <= have.items()]
        assert selected, policy["metadata"]["name"]
        ports_of = {port.get("name") for pod in selected for c in pod["containers"] for port in c.get("ports", [])}
        for rule in policy["spec"]["ingress"]:
            named = {port["port"] for port in rule.get("ports", []) if isinstance(port["port"], str)}
            assert named <= ports_of
    engines = of(documents, "NetworkPolicy", "prime-engines")["spec"]
    (roles,) = engines["podSelector"]["matchExpressions"]
    mine = {have["prime-inference/role"] for have in labels if "prime-inference/role" in have} - {"planner"}
    assert mine <= set(roles["values"]), "an engine that anybody may reach"
    assert {"app.kubernetes.io/instance": "prime"} in [
        peer["podSelector"]["matchLabels"]
        for rule in engines["ingress"]
        for peer in rule["from"]
        if "podSelector" in peer
    ]


def test_each_shard_is_bounded_and_all_are_spread_over_nodes() -> None:
    documents = changed("glm-5.3-b300", "valkeySpec.maxMemory=100gb", "valkeySpec.ioThreads=6", "valkeySpec.shards=9")
    shards = [d for d in documents if d["kind"] == "Deployment" and "-lmcache-" in d["metadata"]["name"]]
    assert len(shards) == 9
    for shard in shards:
        pod = shard["spec"]["template"]
        assert shard["spec"]["replicas"] == 1
        (valkey,) = pod["spec"]["containers"]
        given = dict(zip(valkey["args"][::2], valkey["args"][1::2], strict=True))
        assert (given["--maxmemory"], given["--io-threads"]) == ("100gb", "6")
        (spread,) = pod["spec"]["topologySpreadConstraints"]
        assert spread["topologyKey"] == "kubernetes.io/hostname"
        for other in shards:
            labels = other["spec"]["template"]["metadata"]["labels"]
            assert spread["labelSelector"]["matchLabels"].items() <= labels.items()


def test_a_graph_a_deployment_with_its_ratio_and_its_compute_domain() -> None:
    documents = changed("glm-5.3-gb200", "deployments.gb200.prefill.replicas=2", "deployments.gb200.decode.replicas=7")
    (graph,) = [d for d in documents if d["kind"] == "DynamoGraphDeployment"]
    components = {component["name"]: component for component in graph["spec"]["components"]}
    assert {name: components[name]["replicas"] for name in ("prefill", "decode")} == {"prefill": 2, "decode": 7}
    assert components["prefill"]["multinode"] == {"nodeCount": 2}
    claim = of(documents, "ComputeDomain", "prime-gb200")["spec"]["channel"]["resourceClaimTemplate"]["name"]
    for role in ("prefill", "decode"):
        pod = components[role]["podTemplate"]["spec"]
        (wanted,) = pod["resourceClaims"]
        assert wanted["resourceClaimTemplateName"] == claim
        assert pod["containers"][0]["resources"]["claims"] == [{"name": wanted["name"]}]
    assert not [d for d in rendered("glm-5.3-b300") if d["kind"] == "ComputeDomain"]


def test_grove_or_leaderworkerset_runs_workers_of_several_nodes() -> None:
    annotations = of(rendered("glm-5.3-gb200"), "DynamoGraphDeployment", "prime-gb200")["metadata"]["annotations"]
    assert annotations == {"nvidia.com/grove-update-strategy": "Coherent"}
    documents = changed(
        "glm-5.3-gb200", "deployments.gb200.orchestrator=lws", "deployments.gb200.updateStrategy=RollingRecreate"
    )
    annotations = of(documents, "DynamoGraphDeployment", "prime-gb200")["metadata"]["annotations"]
    assert annotations == {"nvidia.com/enable-grove": "false"}


def test_the_agent_may_be_given_nvidias_runtime() -> None:
    """Where it is not the nodes' default, NVML is in no container that does not name it."""
    agent = of(changed("glm-5.3-gb200", "agent.runtimeClassName=nvidia"), "DaemonSet", "prime-agent")
    assert agent["spec"]["template"]["spec"]["runtimeClassName"] == "nvidia"
    usual = of(rendered("glm-5.3-gb200"), "DaemonSet", "prime-agent")
    assert "runtimeClassName" not in usual["spec"]["template"]["spec"]


def test_a_site_may_have_a_valkey_of_its_own(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    site = "sites.local.valkey.address=valkey.west:6379"
    fleet.write_text(of(changed("local", site), "ConfigMap", "prime-fleet")["data"]["fleet.yaml"])
    assert load_fleet(fleet).valkeys["local"].host == "valkey.west"
    documents = changed("local", site, "sites.local.draining=true", "controlValkey.enabled=false")
    fleet.write_text(of(documents, "ConfigMap", "prime-fleet")["data"]["fleet.yaml"])
    assert load_fleet(fleet).deployments["local"].draining


def test_the_charts_page_tells_of_every_key() -> None:
    page = (CHART / "README.md").read_text()
    told = {
        name for cells in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`(\w+)`", cells)
    }
    assert told == set(yaml.safe_load((CHART / "values.yaml").read_text()))
    for link in re.findall(r"\]\(([^)#]+)", page):
        assert (CHART / link).exists(), link


def test_the_notes_name_what_must_be_there_and_how_to_look(preset: str) -> None:
    options = ["install", "prime", str(CHART), "--namespace", "inference", "--dry-run=client"]
    run = helm(*options, "-f", str(CHART / f"values-{preset.partition('+')[0]}.yaml"))
    assert run.returncode == 0, run.stderr
    notes = run.stdout.partition("NOTES:")[2]
    referred = {
        entry["valueFrom"]["secretKeyRef"]["name"]
        for container in containers(rendered(preset))
        for entry in container.spec.get("env", [])
        if "secretKeyRef" in entry.get("valueFrom", {})
    }
    for _, pod in (each for document in rendered(preset) for each in pods(document)):
        for volume in pod.get("volumes", []):
            referred |= {volume[kind][key] for kind, key in REFERRED if kind in volume}
    assert len(referred) == 4
    for name in referred:
        assert re.search(rf"^  (secret|claim) {re.escape(name)}\b", notes, re.MULTILINE), name


def test_secrets_are_only_referred_to_and_tokens_go_to_those_who_ask_kubernetes(preset: str) -> None:
    documents = rendered(preset)
    assert [d["metadata"]["name"] for d in documents if d["kind"] == "Secret"] == []
    for document in documents:
        for where, pod in pods(document):
            assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, where
            if document["kind"] != "DynamoGraphDeployment":
                asks = where in ("DaemonSet/prime-agent", "Deployment/prime-gateway") and preset != "local"
                assert pod["automountServiceAccountToken"] is asks, where
            for container in pod["containers"]:
                ours_alone = "readOnlyRootFilesystem" in container["securityContext"]
                assert ours_alone is ("engine" not in container["image"] and "planner" not in container["image"]), where
                if document["kind"] not in ("Pod",) and "planner" not in where:
                    assert "livenessProbe" in container, where
                assert "cpu" in container["resources"]["requests"], where
