"""How fast the target's core is just now: the machine's host gives it away, and takes it back, by a third and within minutes.

A lap is a fixed piece of an interpreter's work; it knows nothing of any target. What counts is its time beside the best that
this run has seen, so that a point is void for the core's sake and never for its own result.
"""

import json
import os
import time
from collections.abc import Callable
from statistics import median

from benchmarks.gateway.machine import TARGET_CORE

LAPS = 9
"""Of some 4 ms; their median leaves out the one in which somebody else ran."""

LOOKS_FIRST = 20
"""The first best is that of about a second: the core is seldom slow for all of it and fast later."""

PATIENCE_S, BETWEEN_S = 60.0, 2.0
"""So long a point waits for a core that is slow, and looks so often."""

PATIENCE_A_RUN_S = 900.0
"""All points of a run together; when it is used up they are taken, and void where the core is slow."""

PIECE = {"id": "chatcmpl-1", "choices": [{"index": i, "delta": {"content": "word " * i}} for i in range(24)]}


def lap_s() -> float:
    """Wall time of one look at the core that this thread is on."""
    laps = []
    for _ in range(LAPS):
        start = time.perf_counter()
        for _ in range(60):
            json.loads(json.dumps(PIECE))
        laps.append(time.perf_counter() - start)
    return median(laps)


def on_target_core() -> float:
    """`lap_s` there; this thread returns to the cores that it had."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {TARGET_CORE})
    try:
        return lap_s()
    finally:
        os.sched_setaffinity(0, own)


class Pace:
    """What the core needed for a lap: `best_s` of this run."""

    def __init__(self, lap: Callable[[], float] = on_target_core, sleep: Callable[[float], None] = time.sleep) -> None:
        self._lap = lap
        self._sleep = sleep
        self._patience_s = PATIENCE_A_RUN_S
        self.best_s = min(lap() for _ in range(LOOKS_FIRST))

    def slower(self) -> float:
        """Than the run's best, as a share: 0.0 is as fast."""
        now_s = self._lap()
        self.best_s = min(self.best_s, now_s)
        return now_s / self.best_s - 1.0

    def when_fast(self, limit: float) -> float:
        """As `slower`, as soon as that is at most `limit`, or when patience ends."""
        left_s = min(PATIENCE_S, self._patience_s)
        while (slower := self.slower()) > limit and left_s > 0:
            self._sleep(BETWEEN_S)
            left_s -= BETWEEN_S
            self._patience_s -= BETWEEN_S
        return slower
