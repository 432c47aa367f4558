"""How long this process was kept from its turn: on a crowded machine what it judges is late by as much."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

LOOK_S = 0.02


@dataclass
class Lag:
    longest_s: float = 0.0


@asynccontextmanager
async def lag_watched() -> AsyncIterator[Lag]:
    lag = Lag()

    async def watch() -> None:
        while True:
            due = time.monotonic() + LOOK_S
            await asyncio.sleep(LOOK_S)
            lag.longest_s = max(lag.longest_s, time.monotonic() - due)

    watching = asyncio.create_task(watch())
    try:
        yield lag
    finally:
        watching.cancel()
