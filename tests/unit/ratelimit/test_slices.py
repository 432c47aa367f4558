"""What a replica borrows, gives back and shows; and that no charge is made or lost twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ratelimit import charges_for, core, headers
from gateway.ratelimit.core import UNITS, Bucket, Charge
from gateway.ratelimit.headers import span
from gateway.ratelimit.limits import RateLimits
from gateway.ratelimit.slices import IDLE_S, Slices, View
from gateway.site import SiteUnavailable, Trouble

LARGE = Charge("k:requests", 60_000, 1)
SMALL = Charge("k:requests", 60, 1)


def borrowed(amount: int = 1_000) -> Slices:
    slices = Slices()
    [loan] = slices.take([LARGE], now=0.0).loans
    slices.lent(loan, amount, level=50_000 * UNITS, now=0.0)
    return slices


def test_a_large_limit_borrows_a_second_and_a_small_one_nothing() -> None:
    assert Slices().take([LARGE], 0.0).loans[0].slice == 1_000
    assert Slices().take([SMALL], 0.0).loans[0].slice == 0


def test_the_slice_serves_until_it_is_used_up_and_then_borrows_what_is_missing_to_a_second() -> None:
    slices = borrowed(10)
    for _ in range(10):
        assert slices.take([LARGE], 0.0).loans == ()
    assert slices.take([LARGE], 0.0).loans[0].slice == 1_000
    assert slices.take([LARGE._replace(amount=0)], 0.0).local, "nothing asked, nothing needed"


def test_all_charges_are_taken_or_the_caller_can_undo_them() -> None:
    limits = RateLimits(Told())
    limits._slices = borrowed(5)
    tokens = Charge("k:tokens", 60_000, 50)
    taken = limits.take([LARGE, tokens], 0.0)
    assert (taken.local, [loan.charge for loan in taken.loans]) == ((LARGE,), [tokens])
    limits.undo(taken)
    assert limits._slices.view(LARGE, 0.0).remaining == 50_005


def test_a_slice_never_holds_more_than_a_second_and_gives_the_rest_back() -> None:
    slices = borrowed(1_000)
    slices.put_back([LARGE._replace(amount=30)])
    assert slices.take_due(now=0.0) == [Charge("k:requests", 60_000, -30)]


def test_idle_slices_go_back_and_all_of_them_at_shutdown() -> None:
    slices = borrowed(400)
    assert slices.take_due(now=IDLE_S / 2) == []
    assert slices.take_due(now=IDLE_S) == [Charge("k:requests", 60_000, -400)]
    assert borrowed(400).take_due(now=0.0, everything=True) == [Charge("k:requests", 60_000, -400)]


def test_usage_beyond_the_estimate_comes_out_of_the_slice_and_then_is_a_debt() -> None:
    charge = Charge("k:tokens", 60_000, 100)
    slices = Slices()
    [loan] = slices.take([charge], 0.0).loans
    slices.lent(loan, 30, 0, 0.0)
    slices.used(charge, 150)
    assert slices.take_due(0.0) == [Charge("k:tokens", 60_000, 20)]


def test_what_was_not_used_comes_back() -> None:
    charge = Charge("k:tokens", 60, 100)
    slices = Slices()
    slices.take([charge], 0.0)
    slices.used(charge, 40)
    assert slices.take_due(0.0) == [Charge("k:tokens", 60, -60)]


class Told:
    def __init__(self, trouble: Trouble | None = None) -> None:
        self.trouble = trouble
        self.charges: list[Charge] = []

    async def adjust(self, charges: list[Charge]) -> list[int]:  # type: ignore[override]
        self.charges += charges
        if self.trouble is not None:
            raise SiteUnavailable(self.trouble)
        return [0] * len(charges)


@pytest.mark.parametrize(
    ("trouble", "told_again"),
    [(Trouble.LINK_DOWN, {"a:tokens": -5, "b:tokens": 7}), (Trouble.TIMEOUT, {"b:tokens": 7})],
)
async def test_when_it_is_unknown_whether_it_arrived_only_debts_are_told_again(
    trouble: Trouble, told_again: dict[str, int]
) -> None:
    store = Told(trouble)
    limits = RateLimits(store)
    limits._slices.not_told([Charge("a:tokens", 60, -5), Charge("b:tokens", 60, 7)])
    await limits.flush(now=0.0)
    store.trouble, store.charges = None, []
    await limits.flush(now=0.0)
    assert {charge.bucket: charge.amount for charge in store.charges} == told_again


def test_alone_a_replica_gives_out_its_share_of_a_limit() -> None:
    limits = RateLimits(Told())
    charge = Charge("k:requests", 6, 1)
    for _ in range(2):
        assert limits.take_alone(limits.take([charge], 0.0), replicas=3, now=0.0) is None
    short = limits.take_alone(limits.take([charge], 0.0), replicas=3, now=0.0)
    assert short is not None
    assert short.wait_ms == 30_000
    assert limits.take_alone(limits.take([charge], 0.0), replicas=3, now=30.0) is None


def test_alone_a_request_larger_than_the_share_waits_for_a_full_share_and_leaves_a_debt() -> None:
    limits = RateLimits(Told())
    charge = Charge("k:tokens", 300, 150)
    assert limits.take_alone(limits.take([charge], 0.0), replicas=3, now=0.0) is None
    short = limits.take_alone(limits.take([charge], 0.0), replicas=3, now=0.0)
    assert short is not None
    assert short.wait_ms == 90_000, "from 50 below to 100 above, at 100 a minute"


def test_what_remains_is_what_the_bucket_had_grown_by_the_refill_plus_the_slice() -> None:
    slices = borrowed(500)
    assert slices.view(LARGE, now=1.0) == View("k:requests", 60_000, 51_500, 9_000)
    assert Slices().view(SMALL, now=0.0) == View("k:requests", 60, 60, 0)


def test_the_headers_are_spelled_as_openai_clients_read_them() -> None:
    assert headers([View("k:requests", 60, 59, 1_000), View("k:tokens", 1_000, 0, 360_000)]) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "6m0s",
    }
    assert [span(ms) for ms in (0, 12, 1_500, 61_001)] == ["0ms", "12ms", "1.5s", "1m1.001s"]


def test_a_key_without_limits_is_charged_nothing() -> None:
    assert charges_for("k", None, None, 100) == ()
    assert charges_for("k", 5, 10, 100) == (Charge("k:requests", 5, 1), Charge("k:tokens", 10, 100))


@given(
    limit=st.integers(1, 1_000_000),
    steps=st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 2_000), st.integers(0, 50)), max_size=60),
)
def test_a_bucket_never_gives_out_more_than_its_budget_and_the_refill(
    limit: int, steps: list[tuple[int, int, int]]
) -> None:
    bucket, now, given_out = core.full(limit, 0), 0, 0
    for passed, amount, slice_ in steps:
        now += passed
        bucket = core.refilled(bucket, limit, now)
        wait = core.wait_ms(bucket, limit, amount)
        if wait == 0:
            bucket, lent = core.taken(bucket, limit, amount, slice_)
            given_out += amount + lent
        elif wait > 0:
            later = core.refilled(bucket, limit, now + wait)
            assert core.wait_ms(later, limit, amount) == 0, "the told wait is enough"
            assert core.wait_ms(core.refilled(bucket, limit, now + wait - 1), limit, amount) > 0, "and not too long"
        assert given_out * UNITS <= limit * UNITS + now * limit
        assert bucket.level >= 0


def test_a_clock_that_jumps_back_refills_nothing() -> None:
    assert core.refilled(Bucket(0, 10_000), 60, 5_000) == Bucket(0, 10_000)
