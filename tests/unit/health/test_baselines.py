from hypothesis import given
from hypothesis import strategies as st

from prime_inference.health.baselines import SATURATION, Baselines, Growth, Look

STEPS = st.lists(st.tuples(st.sampled_from(["grow", "reset", "reboot", "restart", "hide"]), st.integers(0, 50)))


def test_the_first_look_judges_nothing() -> None:
    assert Baselines("b").grow("x", 7) == Growth(Look.FIRST)


def test_growth_is_counted_from_the_last_look() -> None:
    baselines = Baselines("b", {"x": 7})
    assert baselines.grow("x", 9) == Growth(Look.GREW, 2)
    assert baselines.grow("x", 9) == Growth(Look.SAME)


def test_a_reset_counter_starts_at_zero_again() -> None:
    baselines = Baselines("b", {"x": 200})
    assert baselines.grow("x", 3) == Growth(Look.GREW, 3)
    assert baselines.grow("x", 0).by == 0
    assert baselines.entries["x"] == 0


def test_after_a_reboot_every_counter_starts_at_zero() -> None:
    baselines = Baselines("b", {"x": 7})
    baselines.begin("c")
    assert baselines.grow("x", 7) == Growth(Look.GREW, 7)


def test_an_unreadable_counter_changes_nothing() -> None:
    baselines = Baselines("b", {"x": 7})
    assert baselines.grow("x", None) == Growth(Look.UNKNOWN)
    assert baselines.grow("x", 8) == Growth(Look.GREW, 1)


def test_a_counter_at_its_end_is_blind_not_good() -> None:
    baselines = Baselines("b", {"link_downed": 254})
    limit = SATURATION["link_downed"]
    assert baselines.grow("link_downed", 255, saturates_at=limit) == Growth(Look.GREW, 1)
    assert baselines.grow("link_downed", 255, saturates_at=limit) == Growth(Look.SATURATED)
    assert Baselines("b").grow("link_downed", 255, saturates_at=limit) == Growth(Look.SATURATED)


@given(STEPS)
def test_no_growth_is_counted_twice_or_below_zero(steps: list[tuple[str, int]]) -> None:
    """Whatever a counter does, what is reported never exceeds what happened since the first look."""
    baselines, boot, value, happened, reported = Baselines("0"), 0, 0, 0, 0
    baselines.grow("x", value)
    for step, by in steps:
        if step == "grow":
            value += by
            happened += by
        elif step == "reset":
            value = 0
        elif step == "reboot":
            boot, value = boot + 1, 0
        elif step == "restart":
            baselines = Baselines(baselines.boot_id, dict(baselines.entries))
        baselines.begin(str(boot))
        growth = baselines.grow("x", None if step == "hide" else value)
        assert growth.by >= 0
        reported += growth.by
        assert reported <= happened
