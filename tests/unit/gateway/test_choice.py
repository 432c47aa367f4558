from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.choice import MAX_TARGETS, by_score, targets
from gateway.fleet.registry import Deployment, Model, ToolsEntry

names = st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=2, max_size=6, unique=True)


def model(*deployments: Deployment) -> Model:
    return Model("m", deployments, None, 0, "us", ToolsEntry())


def deployment(name: str, *frontends: str, priority: int = 0) -> Deployment:
    return Deployment(name, "site", frontends or (f"http://{name}",), priority)


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
    assert len(order) == MAX_TARGETS
    assert order[0].deployment.name != order[1].deployment.name


def test_a_lower_priority_number_is_asked_first() -> None:
    fleet = model(deployment("spare", priority=5), deployment("main", priority=1))
    assert all(targets(fleet, str(session))[0].deployment.name == "main" for session in range(50))
