"""The chart by itself: lint, goldens, schemas, refusals."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.conftest import needs_on_ci
from tests.deploy.crd_schemas import SCHEMAS
from tests.deploy.rendered import (
    CHART,
    GOLDENS,
    KUBERNETES,
    PRESETS,
    Object,
    containers,
    has_module,
    helm,
    helm_binary,
    pod_labels,
    pods,
    rendered,
    rendered_text,
    template,
)


@pytest.mark.parametrize("name", PRESETS)
def test_strict_lint_passes(name: str) -> None:
    needs_on_ci(helm_binary() is not None, "helm")
    run = helm("lint", "--strict", str(CHART), "-f", str(CHART / f"values-{name}.yaml"))
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_rendered_is_what_is_committed(name: str) -> None:
    """`UPDATE_GOLDENS=1` writes them anew; the difference is then part of the review."""
    needs_on_ci(helm_binary() is not None, "helm")
    golden = GOLDENS / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDENS"):
        golden.write_text(rendered_text(name))
    assert rendered_text(name) == golden.read_text(), "rendered otherwise: look, then UPDATE_GOLDENS=1"


def kubernetes_errors(document: Object) -> list[str]:
    import kubernetes_validate

    try:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{document['kind']}/{document['metadata']['name']}: {'.'.join(map(str, error.path))}: {error.message}"]
    return []


def errors_of(document: Object) -> list[str]:
    """Every object is checked, and an unknown kind is an error, not a warning."""
    import kubernetes_validate

    kind = document["kind"]
    if kind in SCHEMAS:
        errors = Draft202012Validator(SCHEMAS[kind]).iter_errors(document)
        found = [f"{kind}: {'.'.join(map(str, e.absolute_path))}: {e.message}" for e in errors]
        if kind == "DynamoGraphDeployment":
            for where, pod in pods(document):
                name = where.rpartition("/")[2]
                found += kubernetes_errors({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod})
        return found
    try:
        return kubernetes_errors(document)
    except kubernetes_validate.SchemaNotFoundError:
        return [f"{document['apiVersion']} {kind}: unknown kind"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_object_is_valid(preset: str) -> None:
    needs_on_ci(has_module("kubernetes_validate"), "kubernetes-validate")
    documents = rendered(preset)
    assert [error for document in documents for error in errors_of(document)] == []
    assert len(documents) > 10


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_typo_in_an_object_would_be_found() -> None:
    needs_on_ci(has_module("kubernetes_validate") and helm_binary() is not None, "kubernetes-validate and helm")
    for kind in ("Deployment", "StatefulSet", "DynamoGraphDeployment", "ComputeDomain", "NetworkPolicy"):
        document = next(d for d in rendered("glm-5.3-gb200") if d["kind"] == kind)
        document["spec"]["replcias"] = 3
        assert errors_of(document), kind
    graph = next(d for d in rendered("glm-5.3-gb200") if d["kind"] == "DynamoGraphDeployment")
    graph["spec"]["components"][-1]["podTemplate"]["spec"]["containers"][0]["imagee"] = "x"
    assert errors_of(graph)
    assert errors_of({"apiVersion": "x.io/v1", "kind": "Unheard", "metadata": {"name": "x"}, "spec": {}})


def test_no_two_objects_share_a_name_and_no_container_a_variable(preset: str) -> None:
    names = [(d["kind"], d["metadata"]["name"]) for d in rendered(preset)]
    assert len(names) == len(set(names))
    for container in containers(rendered(preset)):
        variables = [entry["name"] for entry in container.spec.get("env", [])]
        assert len(variables) == len(set(variables)), container.where


def test_what_is_referenced_exists(preset: str) -> None:
    """ConfigMaps by name, Services by the pods they select; Secrets and claims are the operator's to make."""
    documents = rendered(preset)
    maps = {d["metadata"]["name"] for d in documents if d["kind"] == "ConfigMap"}
    labels = [have for document in documents for have in pod_labels(document)]
    for document in documents:
        for _, pod in pods(document):
            for volume in pod.get("volumes", []):
                if "configMap" in volume:
                    assert volume["configMap"]["name"] in maps
    for service in (d for d in documents if d["kind"] == "Service"):
        wanted = service["spec"]["selector"].items()
        assert sum(wanted <= have.items() for have in labels) == 1, service["metadata"]["name"]


def test_every_container_is_confined(preset: str) -> None:
    for document in rendered(preset):
        for where, pod in pods(document):
            for container in [*pod.get("initContainers", []), *pod["containers"]]:
                context = container["securityContext"]
                at = f"{where}/{container['name']}"
                assert context["allowPrivilegeEscalation"] is False, at
                assert context["capabilities"]["drop"] == ["ALL"], at
                assert set(context["capabilities"].get("add", [])) <= {"IPC_LOCK", "SYSLOG"}, at
                assert "privileged" not in context, at
                assert "memory" in container["resources"]["limits"], at
                assert not container["image"].endswith(":latest"), at
            assert not pod.get("hostNetwork", False), where
            assert not pod.get("hostPID", False), where
            root = "agent" in where
            assert pod["securityContext"].get("runAsNonRoot", False) is not root, where


def test_a_pod_has_longer_to_end_than_its_drain(preset: str) -> None:
    for document in rendered(preset):
        for where, pod in pods(document):
            for container in pod["containers"]:
                env = {e["name"]: e.get("value") for e in container.get("env", [])}
                grace = pod.get("terminationGracePeriodSeconds", 30)
                if "PRIME_GATEWAY_DRAIN_SECONDS" in env:
                    before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
                    assert grace > before + float(env["PRIME_GATEWAY_DRAIN_SECONDS"]), where
                for name in ("DYN_RUNTIME_GRACEFUL_SHUTDOWN_TIMEOUT_SECS", "DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS"):
                    if name in env:
                        assert grace > float(env[name] or 0), where


def test_shards_are_one_deployment_and_service_each() -> None:
    needs_on_ci(helm_binary() is not None, "helm")
    documents = [d for d in rendered("glm-5.3-b300") if "-lmcache-" in d["metadata"]["name"]]
    for kind in ("Deployment", "Service"):
        assert sorted(d["metadata"]["name"] for d in documents if d["kind"] == kind) == [
            f"prime-lmcache-{shard}" for shard in range(8)
        ]


REFUSALS = [
    ("gateway.replcias=3", "replcias"),
    ("deployments.gb200.prefill.replicaz=2", "replicaz"),
    ("valkeySpec.maxMemory=150Gi", "maxMemory"),
    ("valkeySpec.maxMemory=200gb", "valkeySpec.memoryLimit (170Gi) must exceed valkeySpec.maxMemory (200gb)"),
    ("images.gateway.tag=latest", 'images.gateway.tag is "latest": name a version'),
    ("images.engine.tag=", 'images.engine.tag is ""'),
    (
        "mooncake.store.segmentSize=500GB",
        "mooncake.store.memoryLimit (430Gi) must exceed mooncake.store.segmentSize (500GB)",
    ),
    ("deployments.gb200.orchestrator=lws", "deployments.gb200.updateStrategy is Coherent, which only Grove knows"),
    (
        "deployments.gb200.routerPolicy.policy_clases=x",
        "/deployments/gb200/routerPolicy': additional properties 'policy_clases'",
    ),
    ("gateway.networkPolicy.from[0].podSelektor=x", "podSelektor"),
    (
        "gateway.settings.idleTimeoutSeconds=4000",
        "totalTimeoutSeconds (3600) is shorter than gateway.settings.idleTimeoutSeconds",
    ),
    ("gateway.keys.name=", "/gateway/keys/name"),
    ("sites.gb300.draining=true", "sites.gb300: no deployment is at a site of this name (there are gb200)"),
    ("sites.gb200.valkey.tls=true", "sites.gb200.valkey: give either an address or sentinels"),
    ("sites.gb200.valkey.sentinels={a:26379}", "sites.gb200.valkey.sentinels need sites.gb200.valkey.primaryName"),
    ("sites.gb200.valkey.adress=a:6379", "adress"),
    ("agent.cordon.maxShare=10", "/agent/cordon/maxShare"),
    ("deployments.gb200.decode.parallel.tensor=8", "deployments.gb200.decode.parallel makes 8 ranks"),
    ("deployments.gb200.decode.kvCache.dtype=fp8", "kvCache.dtype differ"),
    ("deployments.gb200.decode.kvCache.layout=BLHNC", "kvCache.layout differ"),
    ("deployments.gb200.prefill.tier=lmcache", "lmcache"),
    ("mooncake.enabled=false", "deployments.gb200.prefill.tier is mooncake: set mooncake.enabled"),
    ("models.glm-5\\.3.deployments={nowhere}", 'models.glm-5.3.deployments names "nowhere"'),
    ("agent.canary.deployment=nowhere", 'agent.canary.deployment names "nowhere"'),
    ("agent.canary.model=nothing", 'agent.canary.model names "nothing"'),
    ("deployments.gb200.planner.enabled=true,deployments.gb200.planner.maxGpus=8", "planner.maxGpus (8) is less than"),
    (
        "deployments.gb200.planner.enabled=true,deployments.gb200.planner.decodeCachePercent.down=90",
        "deployments.gb200.planner.decodeCachePercent.up (80) must exceed its down (90)",
    ),
    ("deployments.gb200.planner.maxGPUs=8", "maxGPUs"),
    ("deployments.gb200.decodeTokensPerSecond=0", "decodeTokensPerSecond"),
    ("gateway.settings.otlpEndpoint=collector:4317", "otlpEndpoint"),
    ("gateway.settings.traceRatio=2", "traceRatio"),
    ("controlValkey.quorum=5", "controlValkey.quorum (5) exceeds controlValkey.replicas (3)"),
    ("controlValkey.replicas=2", "controlValkey.replicas is 2"),
    ("deployments.gb200.model.name=glm-9", 'models.glm-5.3: deployments.gb200.model.name is "glm-9"'),
    (
        "deployments.gb200.model.contextTokens=1000",
        "models.glm-5.3.contextTokens (202752) exceeds deployments.gb200.model.contextTokens (1000)",
    ),
    ("gateway.resources.requests.memory=8Gi", "gateway.resources.requests.memory (8Gi) exceeds its limit (4Gi)"),
    ("agent.resources.requests.memory=8Gi", "agent.resources.requests.memory (8Gi) exceeds its limit (256Mi)"),
    (
        "deployments.gb200.frontend.resources.requests.memory=33Gi",
        "deployments.gb200.frontend.resources.requests.memory (33Gi) exceeds its limit (32Gi)",
    ),
    ("gateway.secret.name=A_B", "/gateway/secret/name"),
    ("imagePullSecrets={a b}", "/imagePullSecrets/0"),
    ("gateway.autoscaling.minReplicas=20", "gateway.autoscaling.minReplicas (20) exceeds maxReplicas (12)"),
    (
        "gateway.settings.drainSeconds=5",
        "gateway.settings.drainSeconds (5) is shorter than gateway.settings.totalTimeoutSeconds",
    ),
]


@pytest.mark.parametrize(("setting", "words"), REFUSALS)
def test_a_wrong_value_fails_with_a_sentence_that_names_the_key(setting: str, words: str) -> None:
    needs_on_ci(helm_binary() is not None, "helm")
    run = template("glm-5.3-gb200", "--set", setting)
    assert run.returncode != 0
    assert words in run.stderr


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("prefill.parallel.data=8,deployments.b300.prefill.parallel.prefillContext=1", "sharded needs parallel.data 1"),
        ("prefill.nodes=2,deployments.b300.prefill.gpusPerNode=4", "sharded needs parallel.data 1 and nodes 1"),
        ("prefill.lmcache.l1SizeGb=60", "prefill.lmcache.memory (54Gi) must exceed its l1SizeGb (60)"),
        ("drainSeconds=1800,valkeySpec.shards=7", "sharded has 8 ranks: set valkeySpec.shards"),
    ],
)
def test_servers_of_ranks_that_cannot_be_are_refused(settings: str, words: str) -> None:
    needs_on_ci(helm_binary() is not None, "helm")
    run = template("glm-5.3-b300", "--set", f"deployments.b300.{settings}")
    assert run.returncode != 0
    assert words in run.stderr


def test_without_a_preset_the_chart_says_where_to_start() -> None:
    needs_on_ci(helm_binary() is not None, "helm")
    run = helm("template", "prime", str(CHART))
    assert run.returncode != 0
    assert "start from a preset" in run.stderr


def test_the_schema_is_closed_everywhere() -> None:
    """Objects without `additionalProperties` would take any typo; open ones are maps, and Kubernetes' own shapes."""
    schema: dict[str, Any] = yaml.safe_load(Path(CHART / "values.schema.json").read_text())
    open_by_design = {"global", "routerPolicy", "items"}

    def walk(node: Any, name: str) -> None:
        if isinstance(node, dict):
            if node.get("type") == "object" and name not in open_by_design:
                assert "additionalProperties" in node, name
            for key, value in node.items():
                walk(value, key)
        elif isinstance(node, list):
            for value in node:
                walk(value, name)

    walk(schema, "values")
