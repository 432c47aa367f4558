"""A question asked of a source that may never answer: with a deadline, in a thread of its own.

A call into a driver that hangs cannot be cancelled. It keeps its thread, is not asked again until it returns, and is a
finding of its own: a hung driver is a fault, not silence (DCGM's poll loop was blocked by one such call, and a restarted
agent by the next).
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

T = TypeVar("T")


class Ending(StrEnum):
    ANSWERED = "answered"
    FAILED = "failed"
    HUNG = "hung"
    """Did not answer by the deadline, this round or one before."""


@dataclass(frozen=True)
class Answer(Generic[T]):
    ending: Ending
    value: T | None = None
    error: str = ""


class Probe(Generic[T]):
    """One source's question."""

    def __init__(self, name: str, question: Callable[[], T], deadline_s: float) -> None:
        self.name = name
        self._question = question
        self._deadline_s = deadline_s
        self._running: threading.Thread | None = None
        self._answers: list[Answer[T]] = []

    def ask(self) -> Answer[T]:
        """Ask, and wait for at most the deadline. Never raises.

        An answer that came after its deadline is given now, late and whole: a kernel line is told only once.
        """
        if self._running is not None and self._running.is_alive():
            return Answer(Ending.HUNG)
        if not self._answers:
            self._running = threading.Thread(target=self._run, name=f"probe-{self.name}", daemon=True)
            self._running.start()
            self._running.join(self._deadline_s)
        return self._answers.pop() if self._answers else Answer(Ending.HUNG)

    def _run(self) -> None:
        try:
            self._answers.append(Answer(Ending.ANSWERED, self._question()))
        except TimeoutError:
            # The source kept a deadline of its own, and let go of what hung.
            self._answers.append(Answer(Ending.HUNG))
        except Exception as error:  # noqa: BLE001 - the boundary to drivers: whatever they raise is the answer
            self._answers.append(Answer(Ending.FAILED, error=f"{type(error).__name__}: {error}"))
