"""The line in front of one deployment: asks that need a trip, and asks that wait for capacity. Pure.

New asks are all put to the store once; nobody is turned away before. Who is refused and has patience waits, at most
MOST_WAITING of them, best priority and longest wait first; a newcomer of better priority displaces the last of a full
line. Order holds across both: nobody is asked before someone of his priority who has waited longer.
"""

from dataclasses import dataclass
from enum import IntEnum

from gateway.admission.outcomes import Outcome
from gateway.admission.store import StoreAsk

MOST_WAITING = 32
"""A short line: with requests lasting seconds, whoever stood behind more than this would leave before its turn."""

MOST_ASKS_A_TRIP = 64
"""Keeps one script well under a millisecond of Valkey's only thread."""


class Priority(IntEnum):
    """Lower goes first."""

    INTERACTIVE = 0
    ROUTED = 1
    """An aggregator's request (OpenRouter): it would rather go elsewhere at once than wait."""
    RETRY = 2
    """A client's automatic retry: under pressure, first attempts go first, or retries feed on themselves."""
    BATCH = 3


@dataclass(slots=True, eq=False)
class Waiter:
    ask: StoreAsk
    priority: Priority
    arrived_at: float
    deadline: float
    number: int = 0
    asked: bool = False


def _place(waiter: Waiter) -> tuple[int, int]:
    return (waiter.priority, waiter.number)


class Line:
    def __init__(self) -> None:
        self._waiters: list[Waiter] = []
        self._joined = 0

    def __len__(self) -> int:
        return len(self._waiters)

    def join(self, waiter: Waiter) -> None:
        self._joined += 1
        waiter.number = self._joined
        self._waiters.append(waiter)

    def leave(self, waiter: Waiter) -> None:
        """Granted, refused or gone; a waiter that left already is no error, two may settle it at once."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)

    def next_asks(self) -> list[Waiter]:
        return sorted(self._waiters, key=_place)[:MOST_ASKS_A_TRIP]

    @property
    def has_new(self) -> bool:
        return any(not waiter.asked for waiter in self._waiters)

    def refused(self, waiters: list[Waiter], now: float) -> list[tuple[Waiter, Outcome]]:
        """The store had no room for these: who does not wait on, and why."""
        out: list[tuple[Waiter, Outcome]] = []
        new = {id(waiter) for waiter in waiters if not waiter.asked}
        for waiter in waiters:
            if waiter.deadline <= now:
                out.append((waiter, Outcome.QUEUE_TIMEOUT if waiter.asked else Outcome.NO_CAPACITY))
            waiter.asked = True
        gone = {id(waiter) for waiter, _ in out}
        waiting = sorted((each for each in self._waiters if each.asked and id(each) not in gone), key=_place)
        out += [
            (waiter, Outcome.QUEUE_FULL if id(waiter) in new else Outcome.DISPLACED)
            for waiter in waiting[MOST_WAITING:]
        ]
        for waiter, _ in out:
            self.leave(waiter)
        return out
