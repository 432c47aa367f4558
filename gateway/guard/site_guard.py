"""One site's breakers, leases and limits in this process, and the tasks that keep them."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from gateway.admission import Admission, AdmissionStore, LeaseSettings, MemoryAdmissionStore
from gateway.admission.valkey_store import ValkeyAdmissionStore
from gateway.breaker import BreakerSettings, BreakerStore, Ending, MemoryBreakerStore, SharedBreakers
from gateway.breaker.valkey_store import ValkeyBreakerStore
from gateway.guard.doubts import Doubts
from gateway.site.valkey_store import SiteAddress, SiteValkey

logger = logging.getLogger("gateway.guard")

RESTART_PAUSE_S = 1.0
"""A background task that a bug has ended begins again: leases must be renewed and probes sent all the same."""


@dataclass(frozen=True)
class GuardSettings:
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    lease: LeaseSettings = field(default_factory=LeaseSettings)
    headroom: bool = True


class SiteGuard:
    """Without an address everything is kept in this process: one replica's stack needs no Valkey."""

    def __init__(
        self,
        name: str,
        address: SiteAddress | None,
        settings: GuardSettings,
        deployments: Callable[[], Sequence[str]],
        send_probe: Callable[[str], Awaitable[Ending]],
    ) -> None:
        self.name = name
        self.address = address
        self.valkey = SiteValkey(name, address) if address is not None else None
        breaker_store: BreakerStore
        lease_store: AdmissionStore
        if self.valkey is not None:
            breaker_store = ValkeyBreakerStore(self.valkey, settings.breaker)
            lease_store = ValkeyAdmissionStore(self.valkey, settings.lease)
        else:
            breaker_store = MemoryBreakerStore(settings.breaker, _clock_ms)
            lease_store = MemoryAdmissionStore(settings.lease, _clock_ms)
        self.breakers = SharedBreakers(breaker_store, settings.breaker, deployments, send_probe)
        self.admission = Admission(lease_store, settings.lease, headroom=settings.headroom)
        self.doubts = Doubts(send_probe, settings.breaker.probe_hold_ms / 1000, self.breakers.report)
        self.deployments = deployments
        self.tasks_failed = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """The breakers' state is read first, so that a new replica does not learn of an open one from its clients."""
        await self.breakers.read_once()
        runs = [self.breakers.run, self.admission.run]
        if self.valkey is not None:
            runs.append(self.valkey.keep_link)
        self._tasks = [asyncio.create_task(self._kept(run), name=f"{self.name}:{run.__qualname__}") for run in runs]

    async def close(self) -> None:
        """After the drain: the lease and the slices go back."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.doubts.close()
        await self.admission.leave()
        if self.valkey is not None:
            await self.valkey.close()

    async def _kept(self, run: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await run()
            except Exception:
                # The boundary of a background task: what escapes is a bug, told loudly, and no reason to stop serving.
                self.tasks_failed += 1
                logger.exception("a background task ended", extra={"site": self.name, "task": run.__qualname__})
            await asyncio.sleep(RESTART_PAUSE_S)


def _clock_ms() -> int:
    return int(time.monotonic() * 1000)
