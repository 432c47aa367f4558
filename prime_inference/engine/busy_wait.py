"""vLLM's busy waiting between processes, made to let other processes run.

vLLM 0.31's scheduler and worker processes hand each other work through shared memory, and for a second after each message
the reader polls in a loop around `os.sched_yield()`. With four engine processes on two cores, the pollers take the cores
from whoever they wait for: beside other load a five-token answer took 12 s and more, a NIXL handshake 30 s, and requests
seemed to hang. With a short sleep in the loop's place the same requests beside a like load took 0.55 s (read off by hand,
ADR 0004).
"""

import time
from typing import Any

PAUSE_S = 0.0002
"""Added to a step at each hand-over, of which there are two: little beside a decode step on a CPU (30 to 50 ms)."""


def sleep_while_waiting(broadcast: Any = None) -> None:
    """Replace the yield that vLLM's shared-memory module calls while it waits."""
    if broadcast is None:
        from vllm.distributed.device_communicators import shm_broadcast  # noqa: PLC0415 - costs seconds outside vLLM

        broadcast = shm_broadcast
    broadcast.sched_yield = pause


def pause() -> None:
    time.sleep(PAUSE_S)
