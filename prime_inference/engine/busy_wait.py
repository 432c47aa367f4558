"""vLLM's busy waiting between processes, made to let other processes run.

vLLM 0.31's scheduler and worker processes hand each other work through shared memory, and for a second after each message
the reader polls in a loop around `os.sched_yield()`. With four engine processes on two cores, the pollers take the cores
from whoever they wait for: beside other load a five-token answer took 12 s and more, a NIXL handshake 30 s, and requests
seemed to hang. Short sleeps in the loop's place still woke the reader two hundred times a token, each time in the middle of
the worker's matrix products, whose threads then wait for one another (ADR 0004).

The reader has a second way to wait, which vLLM takes when it has been idle for a second: the writer's notification over a
socket, sent with every message. Here it is the only way. A notification can be lost (the socket holds one, and vLLM looks
again after 5 s for that reason), so the reader also looks by itself, often while messages come.
"""

import time
from typing import Any

PAUSE_S = 0.0002
"""Of a writer that waits for room in the shared memory: rare, and over once the reader has read."""

BUSY_S = 1.0
"""vLLM's own: a reader whose last message is younger expects the next."""

BUSY_LOOK_MS = 5
IDLE_LOOK_MS = 500
"""The longest that a lost notification can cost."""


def wait_to_be_told(broadcast: Any = None) -> None:
    """Readers of vLLM's shared memory wait for the writer's notification; its writers sleep instead of yielding."""
    if broadcast is None:
        from vllm.distributed.device_communicators import shm_broadcast  # noqa: PLC0415 - costs seconds outside vLLM

        broadcast = shm_broadcast
    broadcast.sched_yield = pause
    condition = broadcast.SpinCondition
    if getattr(condition, "_prime_told", False):
        return
    stock_wait = condition.wait

    def wait(self: Any, timeout_ms: int | None = None) -> None:
        self.busy_loop_s = -1.0  # stock yields, and does not listen, while the last read is younger than this
        look_ms = BUSY_LOOK_MS if time.monotonic() <= self.last_read + BUSY_S else IDLE_LOOK_MS
        stock_wait(self, look_ms if timeout_ms is None else min(timeout_ms, look_ms))

    condition.wait = wait
    condition._prime_told = True


def pause() -> None:
    time.sleep(PAUSE_S)
