"""Whatever a check says over time, its fault opens and closes by the rules."""

from hypothesis import given
from hypothesis import strategies as st

from prime_inference.health.faults import Change, Faults
from prime_inference.health.verdicts import Check, Finding, Verdict

CLEAR_S = 60.0
STEPS = st.lists(
    st.tuples(st.sampled_from([Verdict.BAD, Verdict.OK, Verdict.UNKNOWN, None]), st.floats(1.0, 90.0)), max_size=60
)


@given(STEPS)
def test_a_fault_opens_at_the_first_bad_and_ends_only_after_unbroken_goodness(
    steps: list[tuple[Verdict | None, float]],
) -> None:
    """`None`: the check says nothing this round."""
    faults, now, good_since, is_open = Faults(CLEAR_S), 0.0, None, False
    for verdict, pause in steps:
        now += pause
        said = [] if verdict is None else [Finding(Check.ECC_UNCORRECTED, "gpu0", verdict)]
        changes = [event.change for event in faults.take(said, now)]
        if verdict is Verdict.BAD:
            assert changes == ([] if is_open else [Change.OPENED])
            is_open, good_since = True, None
        elif verdict is Verdict.OK:
            good_since = now if good_since is None else good_since
            ends = is_open and now - good_since >= CLEAR_S
            assert changes == ([Change.CLEARED] if ends else [])
            is_open = is_open and not ends
        else:
            assert changes == []
            good_since = None
        assert bool(faults.open) is is_open
        if not is_open:
            good_since = None


@given(STEPS)
def test_a_fatal_xid_outlives_any_silence_but_no_reboot(steps: list[tuple[Verdict | None, float]]) -> None:
    faults, now = Faults(CLEAR_S), 0.0
    faults.take([Finding(Check.XID, "xid79/0", Verdict.BAD)], now)
    for verdict, pause in steps:
        now += pause
        faults.take([] if verdict is None else [Finding(Check.IMEX, "domain", verdict)], now)
        assert (Check.XID, "xid79/0") in faults.open
    faults.begin(rebooted=True)
    assert not faults.open
