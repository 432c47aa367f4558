"""Floors, borrowing and batch as laws, over anything that can be asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.admission import policy
from gateway.admission.policy import NOTHING, Capacity, Kind, Weight

CAPACITY = Capacity(Weight(40, 4_000), {"gold": Weight(12, 1_200), "silver": Weight(8, 800)})
TENANTS = st.sampled_from(["gold", "silver", "x", "y"])
WEIGHTS = st.builds(Weight, st.integers(1, 3), st.integers(0, 400))


@given(asks=st.lists(st.tuples(TENANTS, st.sampled_from(list(Kind)), WEIGHTS), max_size=80))
def test_whatever_is_asked_the_limit_holds_and_every_floor_keeps_its_last_share(
    asks: list[tuple[str, Kind, Weight]],
) -> None:
    used: dict[str, Weight] = {}
    for tenant, kind, asked in asks:
        account = f"{tenant}/batch" if kind is Kind.BATCH else tenant
        weight = policy.clamped(CAPACITY, account, kind, asked)
        if policy.fits(CAPACITY, account, kind, weight, used):
            used[account] = used.get(account, NOTHING).plus(weight)
    together = policy.total(used.values())
    assert together.within(CAPACITY.limit)
    for name, floor in CAPACITY.floors.items():
        kept = policy.last_share(floor).minus(used.get(name, NOTHING)).not_below(NOTHING)
        assert policy.fits(CAPACITY, name, Kind.INTERACTIVE, kept, used), "the owner gets its last share at once"
    batch = policy.total(weight for account, weight in used.items() if account.endswith("/batch"))
    assert batch.within(CAPACITY.limit.minus(policy.scarce_part(CAPACITY.limit)))


def test_two_owners_get_their_last_shares_whoever_comes_first() -> None:
    used: dict[str, Weight] = {}
    for tenant in ("x", "silver", "gold"):
        for _ in range(60):
            if policy.fits(CAPACITY, tenant, Kind.INTERACTIVE, Weight(1, 1), used):
                used[tenant] = used.get(tenant, NOTHING).plus(Weight(1, 1))
    assert {tenant: weight.requests for tenant, weight in used.items()} == {"x": 35, "silver": 2, "gold": 3}


@given(weight=st.builds(Weight, st.just(1), st.integers(0, 10**9)), tenant=TENANTS)
def test_any_request_fits_an_empty_deployment(weight: Weight, tenant: str) -> None:
    clamped = policy.clamped(CAPACITY, tenant, Kind.INTERACTIVE, weight)
    assert policy.fits(CAPACITY, tenant, Kind.INTERACTIVE, clamped, {})


@given(used=st.dictionaries(TENANTS, WEIGHTS.map(lambda w: Weight(w.requests * 4, w.tokens * 4))), wanted=WEIGHTS)
def test_headroom_leaves_a_fifth_and_all_idle_floors_of_others(used: dict[str, Weight], wanted: Weight) -> None:
    room = policy.headroom(CAPACITY, "x", wanted, used)
    assert room.within(wanted)
    if room != NOTHING:
        idle = policy.total(
            floor.minus(used.get(name, NOTHING)).not_below(NOTHING) for name, floor in CAPACITY.floors.items()
        )
        left = CAPACITY.limit.minus(policy.total(used.values())).minus(room).minus(idle)
        assert policy.scarce_part(CAPACITY.limit).within(left)


def test_shares_of_all_replicas_are_the_limit_or_one_request_each() -> None:
    assert CAPACITY.shared_by(3).limit == Weight(13, 1_333)
    assert CAPACITY.shared_by(100).limit == Weight(1, 40)


def test_a_capacity_that_promises_more_than_there_is_does_not_start() -> None:
    with pytest.raises(ValueError, match="more than the limit"):
        Capacity(Weight(10, 100), {"a": Weight(6, 10), "b": Weight(5, 10)})
    with pytest.raises(ValueError, match="at least one request"):
        Capacity(Weight(0, 100))
