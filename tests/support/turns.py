"""How often another task had its turn while something ran."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass


@dataclass
class Turns:
    count: int = 0


@asynccontextmanager
async def turns_counted() -> AsyncIterator[Turns]:
    turns = Turns()

    async def other() -> None:
        while True:
            turns.count += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(other())
    try:
        yield turns
    finally:
        running.cancel()
