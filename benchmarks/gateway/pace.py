"""How fast the target's core is just now: where its other half is somebody else's, it may halve from one second to the next.

A lap is a fixed piece of an interpreter's work and knows nothing of any target. It is taken before and after each point and
voids none: the core of a shared machine changes within a point, too. What it is for is the page, which says from how slow a
core the numbers come.
"""

import json
import os
import time
from statistics import median

from benchmarks.gateway.machine import TARGET_CORE

LAPS = 5
"""Of some 3 ms; their median leaves out the one in which somebody else ran."""

PIECE = {"id": "chatcmpl-1", "choices": [{"index": i, "delta": {"content": "word " * i}} for i in range(24)]}


def lap_ms() -> float:
    """Wall time of a lap on the target's core; this thread then returns to the cores that it had."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {TARGET_CORE})
    try:
        laps = []
        for _ in range(LAPS):
            start = time.perf_counter()
            for _ in range(60):
                json.loads(json.dumps(PIECE))
            laps.append(time.perf_counter() - start)
    finally:
        os.sched_setaffinity(0, own)
    return round(1000 * median(laps), 2)
