"""What is done about an attempt that proves nothing: one probe decides for all that wait."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from gateway.breaker import Ending, Permit, Verdict
from gateway.breaker.board import Source
from gateway.guard.doubts import MOST_IN_DOUBT, Doubts


def permit(verdict: Verdict = Verdict.CLOSED) -> Permit:
    return Permit("d", verdict, 0, Source.LOCAL)


class Probes:
    def __init__(self, ending: Ending, hangs: bool = False) -> None:
        self.ending = ending
        self.hangs = hangs
        self.sent = 0
        self.at_once = self.most_at_once = 0

    async def __call__(self, _: str) -> Ending:
        self.sent += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(60 if self.hangs else 0.01)
        finally:
            self.at_once -= 1
        return self.ending


def doubts_of(send: Callable[[str], Awaitable[Ending]], reports: list[Ending], pause_s: float = 0.02) -> Doubts:
    return Doubts(send, hold_s=0.05, report=lambda _, ending: reports.append(ending), pause_s=pause_s)


@pytest.mark.parametrize(
    ("probes", "reported"),
    [
        (Probes(Ending.SUCCEEDED), []),
        (Probes(Ending.BUSY), []),
        (Probes(Ending.CONNECT_FAILED), [Ending.CONNECT_FAILED] * 5),
        (Probes(Ending.SUCCEEDED, hangs=True), [Ending.FIRST_EVENT_TIMEOUT] * 5),
    ],
    ids=["passes", "busy", "fails", "hangs"],
)
async def test_one_probe_judges_every_attempt_in_doubt(probes: Probes, reported: list[Ending]) -> None:
    reports: list[Ending] = []
    doubts = doubts_of(probes, reports)
    for _ in range(5):
        doubts.raised(permit())
    await asyncio.sleep(0.2)
    assert reports == reported
    assert probes.sent == 1
    await doubts.close()


async def test_a_client_that_never_gives_time_enough_causes_one_probe_a_pause() -> None:
    probes, reports = Probes(Ending.SUCCEEDED), list[Ending]()
    doubts = doubts_of(probes, reports, pause_s=0.1)
    began = time.monotonic()
    for _ in range(50):
        doubts.raised(permit())
        await asyncio.sleep(0.005)
    assert 1 <= probes.sent <= 1 + (time.monotonic() - began) / 0.1
    assert probes.most_at_once == 1
    await doubts.close()


async def test_what_waits_in_doubt_is_bounded_and_ends_with_the_process() -> None:
    probes, reports = Probes(Ending.CONNECT_FAILED), list[Ending]()
    doubts = doubts_of(probes, reports)
    for _ in range(1000):
        doubts.raised(permit())
    await asyncio.sleep(0.05)
    assert len(reports) == MOST_IN_DOUBT
    doubts.raised(permit())
    await doubts.close()
    doubts.raised(permit())
    before = len(reports)
    await asyncio.sleep(0.05)
    assert len(reports) == before


async def test_a_breaker_that_is_open_has_a_probe_of_its_own() -> None:
    probes = Probes(Ending.CONNECT_FAILED)
    doubts = doubts_of(probes, [])
    for verdict in (Verdict.PANIC, Verdict.OPEN, Verdict.HALF_OPEN):
        doubts.raised(permit(verdict))
    await asyncio.sleep(0.02)
    assert probes.sent == 0
    await doubts.close()
