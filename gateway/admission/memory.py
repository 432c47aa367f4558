"""The admission store of one process: the law on dictionaries."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from gateway.admission.policy import Capacity
from gateway.admission.registry import Registry
from gateway.admission.store import Gauges, LeaseSettings, Replica, Standing, StoreAnswer, StoreAsk
from gateway.ratelimit.core import Charge


class MemoryAdmissionStore:
    def __init__(self, settings: LeaseSettings, clock_ms: Callable[[], int]) -> None:
        self.registry = Registry(settings)
        self._clock_ms = clock_ms
        self._listeners: set[Callable[[str], None]] = set()

    async def acquire(
        self,
        replica: Replica,
        deployment: str,
        capacity: Capacity,
        held: Gauges,
        asks: Sequence[StoreAsk],
        within_s: float,
    ) -> tuple[Standing, list[StoreAnswer]]:
        standing, answers, push = self.registry.acquire(self._clock_ms(), replica, deployment, capacity, held, asks)
        if push:
            for listener in self._listeners:
                listener(deployment)
        return standing, answers

    async def beat(self, replica: Replica, held: Mapping[str, tuple[Capacity, Gauges]]) -> Standing:
        return self.registry.beat(self._clock_ms(), replica, held)

    async def leave(self, replica: Replica, deployments: Sequence[str]) -> None:
        self.registry.leave(replica, deployments)

    async def adjust(self, charges: Sequence[Charge]) -> Sequence[int]:
        return self.registry.adjust(self._clock_ms(), charges)

    async def listen(self, on_scarce: Callable[[str], None]) -> None:
        self._listeners.add(on_scarce)
        try:
            await asyncio.Event().wait()
        finally:
            self._listeners.discard(on_scarce)
