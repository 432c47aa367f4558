"""Straight to itself: the upstream's streams reach its clients, each event when the one before has."""

from benchmarks.gateway.lockstep import STREAMS, lockstep
from benchmarks.gateway.targets import DIRECT, Target


def test_events_go_round_and_streams_end_whole_run_after_run() -> None:
    marks: list[int] = []
    with lockstep() as step:
        target = Target(DIRECT, step.port, "/v1/chat/completions", 0, step.port)
        for run in (1, 2):
            done = step.run(target, 10 * STREAMS, lambda: marks.append(1))
            assert 10 * STREAMS <= done < 11 * STREAMS
            assert len(marks) == 2 * run
