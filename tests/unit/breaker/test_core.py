"""The breaker's law under any interleaving of replicas, late reports, dying probe holders and jumping clocks."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.breaker import core
from gateway.breaker.core import BreakerSettings, Record, Report, Snapshot, State

SETTINGS = BreakerSettings()
DRAWS = st.integers(0, core.DRAW_SCALE - 1)


class AnyInterleaving(RuleBasedStateMachine):
    """Replicas hold permits (epochs) and probe tokens, and use them whenever they like."""

    permits = Bundle("permits")
    tokens = Bundle("tokens")

    def __init__(self) -> None:
        super().__init__()
        self.record = Record()
        self.now = 1_000_000
        self.claims = 0
        self.valid_probe: tuple[str, int] | None = None

    def step(self, record: Record) -> None:
        before, self.record = self.record, record
        assert record.epoch >= before.epoch, "epochs never fall"
        assert record.now >= before.now, "time never runs backwards"
        assert (record.state is before.state) or record.epoch > before.epoch, "a transition without a new epoch"
        assert record.open_until >= before.open_until, "an opening shortened a deadline"
        if before.state is State.OPEN and record.state is State.HALF_OPEN:
            assert record.now >= before.open_until, "probed before the cooldown ended"
        assert (before.state, record.state) not in {
            (State.OPEN, State.CLOSED),
            (State.CLOSED, State.HALF_OPEN),
        }, "skipped a state"

    @rule(target=permits)
    def permit(self) -> int:
        return self.record.epoch

    @rule(epoch=consumes(permits), succeeded=st.integers(0, 30), failed=st.integers(0, 30), draw=DRAWS)
    def report(self, epoch: int, succeeded: int, failed: int, draw: int) -> None:
        before = self.record
        batch = Report("d", epoch, succeeded, failed, failed if not succeeded else failed // 2)
        self.step(core.report(before, SETTINGS, self.now, batch, draw))
        if epoch < before.epoch:
            assert self.record.state is before.state, "a late report moved a newer state"
            assert self.record.window == before.window, "a late report was counted"

    @rule(target=tokens)
    def claim(self) -> str:
        self.claims += 1
        token = f"t{self.claims}"
        before = self.record
        record, granted = core.claim_probe(before, SETTINGS, self.now, token)
        self.step(record)
        if granted:
            held = self.valid_probe is not None and before.state is State.HALF_OPEN
            assert not held or self.record.now >= self.valid_probe[1], "two probes at a time"  # type: ignore[index]
            self.valid_probe = (token, self.record.now + SETTINGS.probe_hold_ms)
        return token

    @rule(token=consumes(tokens), passed=st.booleans(), draw=DRAWS)
    def settle(self, token: str, passed: bool, draw: int) -> None:
        record, counted = core.settle_probe(self.record, SETTINGS, self.now, token, passed, draw)
        self.step(record)
        assert counted == (self.valid_probe is not None and self.valid_probe[0] == token), "only the probe that is out"
        if counted:
            self.valid_probe = None
            if not passed:
                assert record.state is State.OPEN

    @rule(ms=st.one_of(st.integers(-5_000, 5_000), st.integers(0, 200_000)))
    def time_passes(self, ms: int) -> None:
        self.now += ms

    @invariant()
    def spans_are_never_negative(self) -> None:
        snapshot = core.snapshot(self.record, self.now)
        assert snapshot.open_for_ms >= 0
        assert snapshot.closed_for_ms >= 0


AnyInterleaving.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestAnyInterleaving = AnyInterleaving.TestCase


def test_the_cooldown_doubles_up_to_its_ceiling_and_jitters_around_it() -> None:
    assert [core.cooldown_ms(SETTINGS, opens, 500) for opens in (1, 2, 3, 9)] == [5_000, 10_000, 20_000, 120_000]
    assert core.cooldown_ms(SETTINGS, 1, 0) == 4_000
    assert core.cooldown_ms(SETTINGS, 1, 999) == 5_998


def test_a_breaker_that_never_opened_takes_all_traffic_and_one_that_closed_ramps() -> None:
    assert core.ramp_percent(SETTINGS, closed_for_ms=0, epoch=0) == 100
    shares = [core.ramp_percent(SETTINGS, ms, epoch=3) for ms in (0, 1_999, 2_000, 3_999, 4_000)]
    assert shares == [10, 10, 50, 50, 100]


def test_an_old_success_restored_as_a_copy_never_overrides_a_newer_opening() -> None:
    opened = core.report(Record(), SETTINGS, 1_000, Report("d", 0, 0, 5, 5), 500)
    assert core.restore(opened, 2_000, Snapshot(State.CLOSED, epoch=opened.epoch)).state is State.OPEN
