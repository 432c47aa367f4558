"""When the tier answered lookups that nobody waits for any more (one thread, alive while there are any).

The scheduler's thread waits for a step of the model, for seconds while a long prompt is computed, and would see the answer only
afterwards; so another asks.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

ASK_EVERY_S = 0.01
"""Also the error of an answer's time. Each time costs LMCache's server one message."""

GIVEN_UP_AFTER_S = 60.0
"""A lookup without an answer for so long is not asked after any more; its request's end is what releases it."""


@dataclass(frozen=True)
class Answer:
    request: str
    tokens: int
    at: float
    """On the monotonic clock."""


class LateLookups:
    """`ask` gives the tokens found, or None while there is no answer; it must not wait. It is called on a thread of ours for a
    request from `watch` to its answer or `forget`, and by nobody else meanwhile."""

    def __init__(self, ask: Callable[[str], int | None]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}
        self._answers: list[Answer] = []
        self._thread: threading.Thread | None = None

    def watch(self, request: str) -> None:
        with self._lock:
            self._until[request] = time.monotonic() + GIVEN_UP_AFTER_S
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="prime-late-lookups", daemon=True)
                self._thread.start()

    def forget(self, request: str) -> None:
        """`ask` is not called for it any more when this returns."""
        with self._lock:
            self._until.pop(request, None)

    def take(self) -> list[Answer]:
        """What was answered since the last call."""
        with self._lock:
            answers, self._answers = self._answers, []
        return answers

    def stop(self) -> None:
        """The thread ends by itself within ASK_EVERY_S."""
        with self._lock:
            self._until.clear()

    def _run(self) -> None:
        while True:
            time.sleep(ASK_EVERY_S)
            with self._lock:
                for request, until in list(self._until.items()):
                    del self._until[request]  # first: one whose question raises is not asked after again
                    found = self._ask(request)
                    now = time.monotonic()
                    if found is not None:
                        self._answers.append(Answer(request, found, now))
                    elif now < until:
                        self._until[request] = until
                if not self._until:
                    self._thread = None
                    return
