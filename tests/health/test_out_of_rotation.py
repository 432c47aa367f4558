"""From a link that goes down to a deployment that gets no new requests: the agent's and the fleet watch's processes, a
Kubernetes API server, sysfs in a folder, and the real gateway where it reloads its fleet file."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from prime_inference.health.command import health
from prime_inference.health.cordon import Budget
from prime_inference.health.fleet_watch import FleetWatch
from prime_inference.health.kubernetes import Kubernetes
from prime_inference.health.out_of_rotation import HEARTBEAT_S, OutOfRotation, Told
from prime_inference.health.page import Page, metrics_of
from tests.health.link_down import OUT_WITHIN_S, link_down
from tests.support.kubernetes import Cluster, kubernetes
from tests.unit.health.node import Node, agent_of, fabric, gpu, port

FLEET = {
    "models": [{"name": "m", "deployments": ["east", "west"]}],
    "deployments": [
        {"name": "east", "site": "east", "frontends": ["http://127.0.0.1:1"]},
        {"name": "west", "site": "west", "frontends": ["http://127.0.0.1:2"]},
    ],
}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with kubernetes() as running:
        for name in ("node-a", "node-b", "node-c"):
            running.add_node(name)
        running.add_worker("east", "prefill", "node-a")
        running.add_worker("east", "decode", "node-b")
        running.add_worker("west", "prefill", "node-c")
        running.add_worker("west", "decode", "node-c")
        yield running


def test_a_failed_node_gets_a_condition_and_a_taint_and_loses_them_when_it_is_well(cluster: Cluster) -> None:
    node = Node((), (port(),))
    agent = agent_of(node, clear_after_s=10)
    told = OutOfRotation(Kubernetes(cluster.url), Budget(1, 1.0))
    agent.told.append(told)
    agent.round()
    assert (cluster.condition("node-a"), cluster.tainted("node-a")) == ("True", False)
    node.port_list = (port("DOWN"),)
    agent.round()
    assert (cluster.condition("node-a"), cluster.tainted("node-a")) == ("False", True)
    written = len(cluster.patches)
    agent.round()
    assert (told.last, len(cluster.patches)) == (Told.NOTHING_NEW, written)
    node.port_list = (port(),)
    for _ in range(4):
        node.at += 5
        agent.round()
    assert (cluster.condition("node-a"), cluster.tainted("node-a")) == ("True", False)


def test_a_conditions_age_is_that_of_its_status_and_not_of_the_last_word(cluster: Cluster) -> None:
    node = Node((), (port(),))
    agent = agent_of(node)
    agent.told.append(OutOfRotation(Kubernetes(cluster.url), Budget(1, 1.0)))

    def times() -> tuple[str, str]:
        agent.round()
        (said,) = [c for c in cluster.nodes["node-a"]["status"]["conditions"] if c["type"] == "PrimeInferenceHealthy"]
        return said["lastTransitionTime"], said["lastHeartbeatTime"]

    since, heard = times()
    node.at += HEARTBEAT_S
    later = times()
    assert later[0] == since
    assert later[1] > heard
    node.at += HEARTBEAT_S
    node.port_list = (port("DOWN"),)
    assert times()[0] > since


def test_past_the_budget_only_the_condition_is_written(cluster: Cluster) -> None:
    cluster.nodes["node-b"]["spec"]["taints"] = [{"key": "prime-inference/unhealthy", "effect": "NoSchedule"}]
    node = Node((), (port(),))
    agent = agent_of(node)
    told = OutOfRotation(Kubernetes(cluster.url), Budget(1, 1.0))
    agent.told.append(told)
    agent.round()
    node.port_list = (port("DOWN"),)
    agent.round()
    assert told.last is Told.OVER_BUDGET
    assert 'prime_health_kubernetes_told{node="node-a",told="over_budget"} 1.0' in metrics_of(agent)
    assert (cluster.condition("node-a"), cluster.tainted("node-a")) == ("False", False)


def test_agents_that_fail_in_one_moment_take_out_no_more_than_the_budget(cluster: Cluster) -> None:
    """A switch dies: sixteen agents see it in the same second, and each looks before any has written."""
    names = [f"node-{number:02}" for number in range(16)]
    nodes = {name: Node((), (port(),)) for name in names}
    agents = []
    for name, node in nodes.items():
        cluster.add_node(name)
        agent = agent_of(node, name=name)
        agent.told.append(OutOfRotation(Kubernetes(cluster.url), Budget(2, 0.5)))
        agent.round()
        agents.append(agent)
        node.port_list = (port("DOWN"),)
    with ThreadPoolExecutor(len(agents)) as at_once:
        list(at_once.map(lambda agent: agent.round(), agents))
    for node in nodes.values():
        # Whose clock or look was unlucky gives way with the next heartbeat.
        node.at += HEARTBEAT_S
    for agent in agents:
        agent.round()
    assert sum(cluster.tainted(name) for name in names) == 2
    assert all(cluster.condition(name) == "False" for name in names), "the gateway hears of every one"


def test_a_node_that_a_person_tainted_stays_so_while_it_is_not_well(cluster: Cluster) -> None:
    for name in ("node-a", "node-b", "node-c"):
        cluster.nodes[name]["spec"]["taints"] = [{"key": "prime-inference/unhealthy", "effect": "NoSchedule"}]
    node = Node((), (port("DOWN"),))
    agent = agent_of(node)
    agent.told.append(OutOfRotation(Kubernetes(cluster.url), Budget(1, 1.0)))
    node.port_list = (port(),)
    agent.round()
    cluster.nodes["node-a"]["spec"]["taints"] = [{"key": "prime-inference/unhealthy", "effect": "NoSchedule"}]
    node.port_list = (port("DOWN"),)
    agent.round()
    assert cluster.tainted("node-a")


def test_other_taints_and_conditions_stay(cluster: Cluster) -> None:
    cluster.nodes["node-a"]["spec"]["taints"] = [{"key": "other", "effect": "NoSchedule"}]
    Kubernetes(cluster.url).set_taint("node-a", 1.0)
    Kubernetes(cluster.url).set_condition("node-a", False, "Faults", "x", 0.0)
    assert {t["key"] for t in cluster.nodes["node-a"]["spec"]["taints"]} == {"other", "prime-inference/unhealthy"}
    assert {c["type"] for c in cluster.nodes["node-a"]["status"]["conditions"]} == {"Ready", "PrimeInferenceHealthy"}


def test_an_api_server_that_refuses_is_tried_again_and_changes_no_fleet_file(cluster: Cluster, tmp_path: Path) -> None:
    node = Node((), (port(),))
    agent = agent_of(node)
    told = OutOfRotation(Kubernetes(cluster.url), Budget(1, 1.0))
    agent.told.append(told)
    agent.round()
    cluster.refuses = True
    node.port_list = (port("DOWN"),)
    agent.round()
    assert told.last is Told.UNREACHABLE
    source, target = tmp_path / "source.yaml", tmp_path / "fleet.yaml"
    source.write_text(yaml.safe_dump(FLEET))
    watch = FleetWatch(Kubernetes(cluster.url), "n", source, target)
    watch.look()
    assert yaml.safe_load(target.read_text()) == FLEET
    cluster.refuses = False
    agent.round()
    assert cluster.tainted("node-a")
    assert watch.look() == {"east"}
    cluster.refuses = True
    watch.look()
    assert yaml.safe_load(target.read_text())["deployments"][0]["draining"] is True


def test_a_worker_over_two_nodes_is_as_well_as_its_worst(cluster: Cluster, tmp_path: Path) -> None:
    cluster.pods.clear()
    for group, nodes in (("0", ("node-a", "node-b")), ("1", ("node-c", "node-c"))):
        for name in nodes:
            cluster.add_worker("east", "prefill", name, **{"leaderworkerset.sigs.k8s.io/group-index": group})
    Kubernetes(cluster.url).set_condition("node-b", False, "Faults", "x", 0.0)
    source, target = tmp_path / "source.yaml", tmp_path / "fleet.yaml"
    source.write_text(yaml.safe_dump(FLEET))
    watch = FleetWatch(Kubernetes(cluster.url), "n", source, target)
    assert watch.look() == frozenset(), "one of two workers is left"
    Kubernetes(cluster.url).set_condition("node-c", False, "Faults", "x", 0.0)
    assert watch.look() == {"east"}


def test_a_pool_that_grows_stays_while_its_new_workers_wait_for_machines(cluster: Cluster, tmp_path: Path) -> None:
    source, target = tmp_path / "source.yaml", tmp_path / "fleet.yaml"
    source.write_text(yaml.safe_dump(FLEET))
    watch = FleetWatch(Kubernetes(cluster.url), "n", source, target)
    assert watch.look() == frozenset()
    for _ in range(3):
        cluster.add_worker("east", "decode", "")
    assert watch.look() == frozenset()
    for pod in cluster.pods[-3:]:
        pod["spec"]["nodeName"] = "node-a"
    assert watch.look() == frozenset()
    for pod in cluster.pods[-3:]:
        del pod["spec"]["nodeName"]
    assert watch.look() == {"east"}, "it had four decode workers"


def test_a_pod_that_was_evicted_is_no_worker(cluster: Cluster, tmp_path: Path) -> None:
    """It stays listed, with the node that it ran on."""
    source, target = tmp_path / "source.yaml", tmp_path / "fleet.yaml"
    source.write_text(yaml.safe_dump(FLEET))
    cluster.add_worker("east", "decode", "node-c")
    cluster.pods[-1]["status"] = {"phase": "Failed", "reason": "Evicted"}
    Kubernetes(cluster.url).set_condition("node-b", False, "Faults", "x", 0.0)
    assert FleetWatch(Kubernetes(cluster.url), "n", source, target).look() == {"east"}


@pytest.mark.parametrize("text", [None, "a: [", "[]", "models: []"])
def test_a_fleet_file_that_is_none_stops_the_start_and_never_a_running_watch(
    cluster: Cluster, tmp_path: Path, text: str | None
) -> None:
    source, target = tmp_path / "source.yaml", tmp_path / "fleet.yaml"
    if text is not None:
        source.write_text(text)
    told = CliRunner().invoke(
        health,
        ["fleet", "--source", str(source), "--target", str(target), "--namespace", "n", "--api-server", cluster.url],
    )
    assert (told.exit_code, target.exists()) == (2, False)
    assert str(source) in told.output.replace("\n", "")
    watch = FleetWatch(Kubernetes(cluster.url), "n", source, target)
    source.write_text(yaml.safe_dump(FLEET))
    watch.look()
    written = target.read_text()
    source.write_text("a: [")
    watch.look_again()
    assert target.read_text() == written


def test_a_broken_fabric_takes_out_its_whole_nvlink_domain(cluster: Cluster, tmp_path: Path) -> None:
    for name in ("node-a", "node-b"):
        cluster.nodes[name]["metadata"]["labels"]["nvidia.com/gpu.clique"] = "rack.1"
    cluster.pods.clear()
    cluster.add_worker("east", "prefill", "node-b")
    cluster.add_worker("east", "decode", "node-b")
    node = Node((gpu(0, fabric=fabric()),), (port(),))
    agent = agent_of(node)
    agent.told.append(OutOfRotation(Kubernetes(cluster.url), Budget(0, 0)))
    source, target = tmp_path / "source.yaml", tmp_path / "fleet.yaml"
    source.write_text(yaml.safe_dump(FLEET))
    watch = FleetWatch(Kubernetes(cluster.url), "n", source, target)
    agent.round()
    assert watch.look() == frozenset()
    node.port_list = (port("DOWN"),)
    agent.round()
    assert watch.look() == frozenset(), "a port is the node's own, and node-b has the workers"
    node.gpu_list = (gpu(0, fabric=fabric(summary=2)),)
    agent.round()
    assert watch.look() == {"east"}


def test_the_agents_page_says_what_it_found(cluster: Cluster) -> None:
    node = Node((), (port(),))
    agent = agent_of(node)
    with Page(agent, "127.0.0.1", 0) as page, httpx.Client(base_url=f"http://127.0.0.1:{page.port}") as client:
        assert client.get("/healthz").status_code == 503, "no round yet"
        agent.round()
        node.port_list = (port("DOWN"),)
        agent.round()
        assert client.get("/healthz").status_code == 200
        said = client.get("/v1/node").json()
        assert (said["schema"], said["state"], said["faults"][0]["entity"]) == (1, "failed", "mlx5_0/1")
        assert 'prime_health_node_state{node="node-a",state="failed"} 1.0' in client.get("/metrics").text
        assert client.get("/nothing").status_code == 404


@pytest.mark.slow
async def test_a_link_down_takes_its_deployment_out_of_rotation_within_the_aim(tmp_path: Path) -> None:
    seconds = await link_down(tmp_path)
    assert seconds["to_condition"] <= seconds["to_draining"] <= seconds["to_first_request_elsewhere"] < OUT_WITHIN_S
