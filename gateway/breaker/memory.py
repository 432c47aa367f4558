"""The breaker store of one process: the law on a dictionary."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from gateway.breaker import core
from gateway.breaker.core import BreakerSettings, Record, Report, Snapshot
from gateway.breaker.store import Answer


class MemoryBreakerStore:
    def __init__(self, settings: BreakerSettings, clock_ms: Callable[[], int]) -> None:
        self._settings = settings
        self._clock_ms = clock_ms
        self._records: dict[str, Record] = {}
        self._listeners: set[Callable[[str], None]] = set()

    async def read(self, deployments: Sequence[str]) -> Mapping[str, Snapshot]:
        now = self._clock_ms()
        return {name: core.snapshot(self._record(name), now) for name in deployments}

    async def report(self, batch: Report, draw: int) -> Answer:
        before = self._record(batch.deployment)
        counted = batch.epoch == before.epoch and before.state is core.State.CLOSED
        after = core.report(before, self._settings, self._clock_ms(), batch, draw)
        return self._stored(batch.deployment, before, after, counted)

    async def claim_probe(self, deployment: str, token: str) -> Answer:
        before = self._record(deployment)
        after, granted = core.claim_probe(before, self._settings, self._clock_ms(), token)
        return self._stored(deployment, before, after, granted)

    async def hasten(self, deployment: str) -> Answer:
        before = self._record(deployment)
        after, counted = core.hasten(before, self._clock_ms())
        return self._stored(deployment, before, after, counted)

    async def settle_probe(self, deployment: str, token: str, passed: bool, draw: int) -> Answer:
        before = self._record(deployment)
        after, counted = core.settle_probe(before, self._settings, self._clock_ms(), token, passed, draw)
        return self._stored(deployment, before, after, counted)

    async def restore(self, deployment: str, copy: Snapshot) -> Answer:
        before = self._record(deployment)
        after = core.restore(before, self._clock_ms(), copy)
        return self._stored(deployment, before, after, after.epoch != before.epoch)

    async def listen(self, on_change: Callable[[str], None]) -> None:
        self._listeners.add(on_change)
        try:
            await asyncio.Event().wait()
        finally:
            self._listeners.discard(on_change)

    def _record(self, deployment: str) -> Record:
        return self._records.get(deployment, Record())

    def _stored(self, deployment: str, before: Record, after: Record, counted: bool) -> Answer:
        self._records[deployment] = after
        if after.epoch != before.epoch:
            for listener in self._listeners:
                listener(deployment)
        return Answer(counted, core.snapshot(after, self._clock_ms()))
