"""The tasks that keep a replica's board and its site's store together.

    flush   reports: a counted failure at once, the rest every FLUSH_S
    poll    every POLL_S, and at each push: all deployments in one trip
    listen  pushes: another replica's transition arrives within milliseconds
    probe   claims what is due; whoever is granted the token sends the probe and settles it

So a transition reaches every replica within POLL_S and a trip, also when its push is lost.

Store away: the board stays as it is (fail-static) and goes on alone, on a store of this process seeded with the copies.
Store back: its word counts again, except where a copy is of a newer epoch than what the store knows; that is restored.
"""

import asyncio
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence

from gateway.breaker.board import Board, Permit, Source
from gateway.breaker.core import DRAW_SCALE, BreakerSettings, Report
from gateway.breaker.endings import COUNTED, Ending
from gateway.breaker.memory import MemoryBreakerStore
from gateway.breaker.store import Answer, BreakerStore
from gateway.site.errors import SiteUnavailable

FLUSH_S = 0.2
"""Successes only keep rates honest; sending them together keeps the trips few."""

POLL_S = 0.5
"""Half the second in which every replica must know; the other half is for a slow trip."""

PROBE_LOOK_S = 0.1
"""How late a due probe may be noticed: small against the shortest cooldown."""

SendProbe = Callable[[str], Awaitable[Ending]]
"""Sends a deployment a short synthetic prompt and says how it ended. Has no timeout of its own."""


class SharedBreakers:
    def __init__(
        self,
        store: BreakerStore,
        settings: BreakerSettings,
        deployments: Callable[[], Sequence[str]],
        send_probe: SendProbe,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.board = Board(settings)
        self._store = store
        self._fallback: MemoryBreakerStore | None = None
        self._settings = settings
        self._deployments = deployments
        self._send_probe = send_probe
        self._clock = clock
        self._failure = asyncio.Event()
        self._push = asyncio.Event()
        self._probing: set[str] = set()

    # ── the request path: never waits ──

    def permit(self, deployment: str, peers: Iterable[str]) -> Permit:
        return self.board.permit(deployment, peers, self._clock(), random.random())

    def report(self, permit: Permit, ending: Ending) -> None:
        if self.board.report(permit, ending):
            self._failure.set()

    # ── background ──

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._flush())
            tasks.create_task(self._poll())
            tasks.create_task(self._store.listen(lambda _deployment: self._push.set()))
            tasks.create_task(self._probe(tasks))

    async def read_once(self) -> None:
        """Before the first request, so that a new replica does not learn of an open breaker from its clients."""
        try:
            await self._read_shared()
        except SiteUnavailable as error:
            await self._unavailable(error)

    async def hasten(self, deployment: str) -> bool:
        """An operator's wish: an open breaker is probed now. False if it was not open, or nobody could be asked."""
        answer = await self._change(deployment, lambda store: store.hasten(deployment))
        return answer is not None and answer.counted

    async def _flush(self) -> None:
        while True:
            await _set_or_after(self._failure, FLUSH_S)
            for batch in self.board.take_reports():
                await self._send(batch)

    async def _send(self, batch: Report) -> None:
        if await self._change(batch.deployment, lambda store: store.report(batch, _draw())) is None:
            self.board.put_back(batch)

    async def _poll(self) -> None:
        while True:
            await self.read_once()
            await _set_or_after(self._push, POLL_S)

    async def _probe(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            await asyncio.sleep(PROBE_LOOK_S)
            for deployment in self.board.probes_due(self._deployments(), self._clock()):
                if deployment not in self._probing:
                    await self._claim(deployment, tasks)

    async def _claim(self, deployment: str, tasks: asyncio.TaskGroup) -> None:
        token = secrets.token_hex(8)
        answer = await self._change(deployment, lambda store: store.claim_probe(deployment, token))
        if answer is not None and answer.counted:
            self._probing.add(deployment)
            tasks.create_task(self._hold_probe(deployment, token))

    async def _hold_probe(self, deployment: str, token: str) -> None:
        try:
            async with asyncio.timeout(self._settings.probe_hold_ms / 1000):
                ending = await self._send_probe(deployment)
        except TimeoutError:
            ending = Ending.FIRST_EVENT_TIMEOUT
        finally:
            self._probing.discard(deployment)
        passed = ending not in COUNTED
        await self._change(deployment, lambda store: store.settle_probe(deployment, token, passed, _draw()))

    async def _change(self, deployment: str, call: Callable[[BreakerStore], Awaitable[Answer]]) -> Answer | None:
        """One call on the store that rules now; its snapshot goes to the board. None if no answer came."""
        try:
            answer = await call(self._fallback or self._store)
        except SiteUnavailable as error:
            await self._unavailable(error)
            return None
        self.board.update(deployment, answer.snapshot, self._clock())
        return answer

    async def _read_shared(self) -> None:
        deployments = self._deployments()
        snapshots = await self._store.read(deployments)
        if self._fallback is not None:
            self._fallback = None
            self.board.turn_shared()
        for deployment, snapshot in snapshots.items():
            if not self.board.update(deployment, snapshot, self._clock()):
                copy = self.board.aged(deployment, self._clock())
                answer = await self._store.restore(deployment, copy)
                self.board.update(deployment, answer.snapshot, self._clock())

    async def _unavailable(self, error: SiteUnavailable) -> None:
        """One trip lost is nothing; the copies hold. Only when the link is given up does this replica go on alone."""
        if not error.link_is_down:
            return
        if self._fallback is None:
            fallback = MemoryBreakerStore(self._settings, lambda: int(self._clock() * 1000))
            for deployment in self._deployments():
                await fallback.restore(deployment, self.board.aged(deployment, self._clock()))
            self._fallback = fallback
            self.board.turn_local()
        for deployment, snapshot in (await self._fallback.read(self._deployments())).items():
            self.board.update(deployment, snapshot, self._clock())

    @property
    def source(self) -> Source:
        return self.board.source


async def _set_or_after(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
    event.clear()


def _draw() -> int:
    return random.randrange(DRAW_SCALE)
