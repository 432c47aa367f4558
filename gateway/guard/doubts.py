"""Attempts that say nothing by themselves: their clients had less time than the deployment may take, or left waiting.

Blaming the deployment would let clients in a hurry open its breaker; never blaming it would leave one that hangs in
service for as long as all its clients are in a hurry. So the deployment is asked: one probe a replica and deployment at a
time. Fails it, the attempts in doubt are reported with the probe's ending; passes it, they are forgotten.
"""

import asyncio
from collections.abc import Awaitable, Callable

from gateway.breaker import COUNTED, Ending, Permit, Verdict

MOST_IN_DOUBT = 64
"""More attempts than any breaker needs to trip say nothing more."""

PAUSE_S = 1.0
"""Between two probes at a deployment: a client that always gives too little time must not make a load of them."""


IN_SERVICE = (Verdict.CLOSED, Verdict.RAMP)
"""An open breaker has its own probe."""


class Doubts:
    def __init__(
        self,
        send_probe: Callable[[str], Awaitable[Ending]],
        hold_s: float,
        report: Callable[[Permit, Ending], None],
        pause_s: float = PAUSE_S,
    ) -> None:
        """`hold_s` bounds a probe, which has no time of its own."""
        self._send_probe = send_probe
        self._hold_s = hold_s
        self._report = report
        self._pause_s = pause_s
        self._permits: dict[str, list[Permit]] = {}
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    def raised(self, permit: Permit) -> None:
        """Never waits."""
        if self._closed or permit.verdict not in IN_SERVICE:
            return
        permits = self._permits.get(permit.deployment)
        if permits is None:
            self._permits[permit.deployment] = [permit]
            task = asyncio.create_task(self._ask(permit.deployment), name=f"doubt:{permit.deployment}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif len(permits) < MOST_IN_DOUBT:
            permits.append(permit)

    async def close(self) -> None:
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask(self, deployment: str) -> None:
        permits = self._permits[deployment]
        try:
            # What comes in doubt while the answer is awaited is judged by it; what comes in the pause, by the next.
            while permits:
                ending = await self._answer_of(deployment)
                if ending in COUNTED:
                    for permit in permits:
                        self._report(permit, ending)
                permits.clear()
                await asyncio.sleep(self._pause_s)
        finally:
            del self._permits[deployment]

    async def _answer_of(self, deployment: str) -> Ending:
        try:
            async with asyncio.timeout(self._hold_s):
                return await self._send_probe(deployment)
        except TimeoutError:
            return Ending.FIRST_EVENT_TIMEOUT
