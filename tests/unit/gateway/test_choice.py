from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.choice import Standing, by_score, targets
from gateway.fleet.registry import Deployment, Model, ToolsEntry

names = st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=2, max_size=6, unique=True)


def model(*deployments: Deployment) -> Model:
    return Model("m", deployments, None, 0, "us", ToolsEntry())


def deployment(name: str, *frontends: str, **more: Any) -> Deployment:
    return Deployment(name, "site", frontends or (f"http://{name}",), **more)


def firsts(fleet: Model, sessions: int = 3000) -> Counter[str]:
    return Counter(targets(fleet, str(session))[0].deployment.name for session in range(sessions))


@given(names, st.text(max_size=8), st.data())
def test_a_lost_target_moves_only_its_own_sessions(frontends: list[str], session: str, data: st.DataObject) -> None:
    first = by_score(session, frontends)[0]
    lost = data.draw(st.sampled_from(frontends))
    left = [name for name in frontends if name != lost]
    if lost != first:
        assert by_score(session, left)[0] == first


def test_sessions_spread_over_frontends() -> None:
    firsts = [by_score(str(session), ["a", "b", "c"])[0] for session in range(3000)]
    assert all(800 < firsts.count(name) < 1200 for name in "abc")


def test_a_session_keeps_its_target_and_failover_goes_to_other_deployments_first() -> None:
    both = model(deployment("a", "http://a1", "http://a2"), deployment("b", "http://b1", "http://b2"))
    order = targets(both, "session")
    assert order == targets(both, "session")
    assert len(order) == 4
    assert order[0].deployment.name != order[1].deployment.name


def test_a_lower_priority_number_is_asked_first() -> None:
    fleet = model(deployment("spare", priority=5), deployment("main", priority=1))
    assert all(targets(fleet, str(session))[0].deployment.name == "main" for session in range(50))


def test_sessions_spread_by_weight() -> None:
    counts = firsts(model(deployment("a", weight=3.0), deployment("b"), deployment("c", weight=0.0)))
    assert 2100 < counts["a"] < 2400
    assert counts["c"] == 0


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=5), st.text(max_size=8), st.data())
def test_a_draining_deployment_moves_only_its_own_sessions(
    weights: list[float], session: str, data: st.DataObject
) -> None:
    all_of_them = [deployment(f"d{n}", weight=weight) for n, weight in enumerate(weights)]
    first = targets(model(*all_of_them), session)[0].deployment.name
    drained = data.draw(st.integers(0, len(weights) - 1))
    after = [deployment(f"d{n}", weight=w, draining=n == drained) for n, w in enumerate(weights)]
    order = [target.deployment.name for target in targets(model(*after), session)]
    assert f"d{drained}" not in order
    assert first == f"d{drained}" or order[0] == first


def test_overflow_comes_last_whatever_its_priority() -> None:
    fleet = model(deployment("spill", priority=-1, overflow=True), deployment("main", priority=9))
    assert [target.deployment.name for target in targets(fleet, "s")] == ["main", "spill"]


def test_behind_the_sessions_own_deployment_the_healthy_and_free_come_first() -> None:
    fleet = model(*(deployment(name) for name in "abcd"))
    own, *rest = [target.deployment.name for target in targets(fleet, "s")]
    standings = {
        own: Standing.CLOSED_OFF,
        rest[0]: Standing.CLOSED_OFF,
        rest[1]: Standing.SCARCE,
        rest[2]: Standing.FREE,
    }
    order = [target.deployment.name for target in targets(fleet, "s", standings.__getitem__)]
    assert order == [own, rest[2], rest[1], rest[0]]
