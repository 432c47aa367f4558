"""Operators' orders over the fleet file, as plain values."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admin.actions import ACTION, check, ordered
from gateway.errors import Conflict
from gateway.fleet.orders import Heard, Order, Ramp, SiteOrders, left_alone, obeyed, ramp_left_ms, weight_now
from gateway.fleet.registry import Fleet, FleetFile, fleet_of

WEIGHTS = st.floats(0, 1000, allow_nan=False)
RAMPS = st.builds(Ramp, WEIGHTS, st.integers(0, 10**12), st.integers(1, 10**8))
ORDERS = st.builds(Order, st.booleans(), st.none() | WEIGHTS, st.none() | st.booleans(), st.none() | RAMPS)
SITE_ORDERS = st.builds(SiteOrders, st.integers(0), st.booleans(), st.dictionaries(st.text(min_size=1), ORDERS))


def fleet(**east: object) -> Fleet:
    deployments = [
        {"name": "east", "site": "a", "frontends": ["http://127.0.0.1:1"], **east},
        {"name": "west", "site": "b", "frontends": ["http://127.0.0.1:2"]},
    ]
    models = [{"name": "m", "deployments": ["east", "west"]}]
    return fleet_of(FleetFile.model_validate({"models": models, "deployments": deployments}))


@given(SITE_ORDERS)
def test_what_is_written_is_what_is_read(orders: SiteOrders) -> None:
    assert msgspec.json.decode(msgspec.json.encode(orders), type=SiteOrders) == orders


@given(RAMPS, WEIGHTS, WEIGHTS, st.lists(st.integers(-(10**6), 2 * 10**8), min_size=2))
def test_a_ramp_goes_one_way_from_its_start_to_its_end(ramp: Ramp, to: float, written: float, spans: list[int]) -> None:
    order = Order(weight=to, ramp=ramp)
    weights = [weight_now(order, written, ramp.started_ms + span) for span in sorted(spans)]
    assert weights == sorted(weights, reverse=to < ramp.start)
    assert all(min(to, ramp.start) <= weight <= max(to, ramp.start) + 1e-9 for weight in weights)
    end = ramp.started_ms + ramp.duration_ms
    assert weight_now(order, written, end) == to
    assert ramp_left_ms(order, end) == 0


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.builds(Heard, SITE_ORDERS, st.integers(0, 10**12))))
def test_orders_drain_and_never_bring_back(heard: dict[str, Heard]) -> None:
    written = fleet(draining=True)
    ruling = obeyed(written, heard)
    assert ruling.deployments["east"].draining
    assert set(ruling.deployments) == set(written.deployments)
    assert all(each is ruling.deployments[each.name] for each in ruling.models["m"].deployments)


def test_a_fleet_without_orders_is_the_files_own() -> None:
    written = fleet()
    assert obeyed(written, {}) is written
    assert obeyed(written, {"a": Heard(SiteOrders(7, deployments={"gone": Order(draining=True)}))}) is written


def test_orders_of_one_site_say_nothing_of_another() -> None:
    ruling = obeyed(fleet(), {"a": Heard(SiteOrders(draining=True, deployments={"west": Order(draining=True)}))})
    assert [each.draining for each in ruling.deployments.values()] == [True, False]


@pytest.mark.parametrize(
    "action",
    [
        {"action": "drain", "deployment": "east"},
        {"action": "drain_site", "site": "a"},
    ],
)
def test_the_last_to_serve_a_model_goes_only_by_force(action: dict[str, object]) -> None:
    written, first = fleet(), {"b": Heard(SiteOrders(draining=True))}
    for force in (False, True):
        parsed = ACTION.validate_python({**action, "force": force})
        wanted = ordered(parsed, Heard(), written.deployments["east"])  # type: ignore[arg-type]
        after = {**first, "a": Heard(wanted)}
        assert [model.name for model in left_alone(obeyed(written, after))] == ["m"]
        if force:
            check(parsed, written, first, after)  # type: ignore[arg-type]
        else:
            with pytest.raises(Conflict, match="serve m"):
                check(parsed, written, first, after)  # type: ignore[arg-type]


@given(ORDERS)
def test_taking_every_order_back_leaves_nothing(order: Order) -> None:
    orders = SiteOrders(3, deployments={"east": order})
    east = fleet().deployments["east"]
    for action in (
        {"action": "undrain", "deployment": "east"},
        {"action": "weight", "deployment": "east", "weight": None},
        {"action": "overflow", "deployment": "east", "overflow": None},
    ):
        orders = ordered(ACTION.validate_python(action), Heard(orders), east)  # type: ignore[arg-type]
    assert orders == replace(SiteOrders(), revision=3)
