"""Cordon budget, rotation, domains: pure decisions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.health.cordon import Budget, Cluster, Decision, decide
from prime_inference.health.domain import NodeView, domains
from prime_inference.health.faults import State
from prime_inference.health.rotation import NOWHERE, Pool, Why, Worker, drained, missed, reason_to_drain

NODES = frozenset(f"n{i}" for i in range(20))


def test_a_failed_node_goes_out_and_comes_back() -> None:
    budget = Budget(2, 0.1)
    assert decide("n1", True, Cluster(NODES, {}), budget) is Decision.CORDON
    assert decide("n1", True, Cluster(NODES, {"n1": 5}), budget) is Decision.KEEP
    assert decide("n1", False, Cluster(NODES, {"n1": 5}), budget) is Decision.UNCORDON
    assert decide("n1", False, Cluster(NODES, {}), budget) is Decision.KEEP


@given(st.integers(0, 20), st.integers(0, 5), st.floats(0, 1))
def test_no_more_nodes_go_out_than_the_budget_allows(failing: int, max_nodes: int, max_share: float) -> None:
    budget, tainted = Budget(max_nodes, max_share), dict[str, int | None]()
    for node in sorted(NODES)[:failing]:
        if decide(node, True, Cluster(NODES, tainted), budget) is Decision.CORDON:
            tainted[node] = len(tainted)
    assert len(tainted) <= max_nodes
    assert len(tainted) <= max(1, max_share * len(NODES))
    if 0 in (max_nodes, max_share):
        assert not tainted


@given(
    st.dictionaries(st.sampled_from(sorted(NODES)), st.integers(0, 3), max_size=20),
    st.integers(0, 5),
    st.floats(0, 1),
)
def test_of_too_many_taints_all_agents_agree_which_give_way(
    tainted: dict[str, int], max_nodes: int, max_share: float
) -> None:
    cluster, budget = Cluster(NODES, dict(tainted)), Budget(max_nodes, max_share)
    stay = {node for node in tainted if decide(node, True, cluster, budget) is Decision.KEEP}
    assert len(stay) == min(len(tainted), budget.of(len(NODES)))
    # Those that came first, by time and then by name.
    assert stay == set(sorted(tainted, key=lambda node: (tainted[node], node))[: len(stay)])
    assert {decide(node, True, cluster, budget) for node in tainted if node not in stay} <= {Decision.GIVE_WAY}


def workers(*pools: tuple[str, list[set[str]]]) -> list[Worker]:
    return [Worker("d", role, frozenset(nodes)) for role, pool in pools for nodes in pool]


@pytest.mark.parametrize(
    ("unhealthy", "why"),
    [
        (set[str](), Why.STAYS),
        ({"p0"}, Why.NO_PREFILL),
        ({"p1"}, Why.NO_PREFILL),
        ({"d0"}, Why.STAYS),
        ({"d0", "d1"}, Why.STAYS),
        ({"d0", "d1", "d2"}, Why.TOO_FEW),
        ({"d0", "d1", "d2", "d3"}, Why.NO_DECODE),
        ({"elsewhere"}, Why.STAYS),
    ],
)
def test_a_pool_without_enough_healthy_workers_takes_its_deployment_out(unhealthy: set[str], why: Why) -> None:
    """GB200: one prefill worker over two nodes, four decode workers."""
    fleet = workers(("prefill", [{"p0", "p1"}]), ("decode", [{"d0"}, {"d1"}, {"d2"}, {"d3"}]))
    assert reason_to_drain("d", fleet, frozenset(unhealthy)) is why


def pool(placed: int, waiting: int) -> list[Worker]:
    return workers(("decode", [*({f"n{number}"} for number in range(placed)), *([{NOWHERE}] * waiting)]))


@pytest.mark.parametrize(
    ("looks", "why"),
    [
        ([(1, 0), (1, 3)], Why.STAYS),  # it grows, and the new ones wait for a machine
        ([(1, 3)], Why.STAYS),  # the watch is new, and cannot know
        ([(4, 0), (1, 3)], Why.TOO_FEW),  # it had four
        ([(4, 0), (1, 3), (1, 3)], Why.TOO_FEW),
        ([(4, 0), (1, 0), (1, 3)], Why.STAYS),  # made smaller, then larger again
        ([(0, 2)], Why.NO_DECODE),
        ([(2, 0), (0, 2)], Why.NO_DECODE),
        ([(4, 0), (2, 2)], Why.STAYS),
    ],
)
def test_a_worker_that_waits_for_a_node_is_missed_only_where_there_was_one(
    looks: list[tuple[int, int]], why: Why
) -> None:
    most: dict[Pool, int] = {}
    for look in looks:
        counted, most = missed(pool(*look), most)
    assert reason_to_drain("d", counted, frozenset({NOWHERE})) is why


def test_a_deployment_without_pods_of_ours_stays() -> None:
    assert reason_to_drain("remote", workers(("prefill", [{"p0"}])), frozenset({"p0"})) is Why.STAYS


FLEET = {
    "models": [{"name": "m", "deployments": ["a", "b"]}, {"name": "n", "deployments": ["b", "c"]}],
    "deployments": [{"name": "a"}, {"name": "b"}, {"name": "c", "draining": True}],
}


def leaving(*names: str) -> list[str]:
    return [d["name"] for d in drained(FLEET, frozenset(names))["deployments"] if d.get("draining")]


def test_draining_is_written_and_what_people_drain_stays_drained() -> None:
    assert leaving("a") == ["a", "c"]
    assert leaving() == ["c"]
    assert "draining" not in FLEET["deployments"][0]


def test_the_last_deployment_of_a_model_is_never_drained() -> None:
    assert leaving("a", "b") == ["a", "c"]
    assert leaving("b") == ["c"], "c is drained by hand, so b is the last that serves n"


def test_a_tray_with_a_broken_fabric_fails_its_whole_domain() -> None:
    views = [
        NodeView("a", State.HEALTHY, "rack/1", True),
        NodeView("b", State.FAILED, "rack/1", False),
        NodeView("c", State.HEALTHY, "rack/2", True),
        NodeView("d", State.FAILED, "rack/2", None),
        NodeView("e", State.HEALTHY, None, None),
    ]
    found = domains(views)
    assert found["rack/1"].state is State.FAILED
    assert found["rack/1"].failed == ("b",)
    assert found["rack/1"].nodes == ("a", "b")
    assert found["rack/2"].state is State.DEGRADED
    assert set(found) == {"rack/1", "rack/2"}
