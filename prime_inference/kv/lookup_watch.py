"""Sees when the tier answers a lookup (one thread, alive while there are any unanswered).

The scheduler's thread waits for a step of the model, for seconds while long prompts are computed, and LMCache's lookup takes
two questions, so the scheduler alone would learn of an answer several steps after it came, or give it up.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

ASK_EVERY_S = 0.002
ASK_SHARE = 1 / 32
"""A lookup is asked after when it is older by this share than at the last time, and at most each ASK_EVERY_S. So an answer
is seen late by no more than that, and one that takes long costs few messages: the engine needs the processor meanwhile."""

GIVEN_UP_AFTER_S = 60.0
"""A lookup without an answer for so long is not asked after any more; its request's end is what releases it."""


@dataclass(frozen=True)
class Answer:
    tokens: int
    at: float
    """On the monotonic clock."""


class LookupWatch:
    """`ask` gives the tokens found, or None while there is no answer; it must not wait. It is called on a thread of ours for a
    request from after `watch` to its answer or `forget`, and by nobody else meanwhile."""

    def __init__(self, ask: Callable[[str], int | None]) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[float, float]] = {}
        """When each began, and when it is to be asked after next."""
        self._answers: dict[str, Answer] = {}
        self._thread: threading.Thread | None = None

    def watch(self, request: str) -> Answer | None:
        """The answer if there is one at once, as when the server is away."""
        with self._lock:
            found = self._ask(request)
            if found is not None:
                self._answers[request] = Answer(found, time.monotonic())
                return self._answers[request]
            began = time.monotonic()
            self._waiting[request] = (began, began)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="prime-lookup-watch", daemon=True)
                self._thread.start()
            return None

    def answer(self, request: str) -> Answer | None:
        with self._lock:
            return self._answers.get(request)

    def forget(self, request: str) -> None:
        """`ask` is not called for it any more when this returns."""
        with self._lock:
            self._waiting.pop(request, None)
            self._answers.pop(request, None)

    def stop(self) -> None:
        """The thread ends by itself at its next turn."""
        with self._lock:
            self._waiting.clear()

    def _run(self) -> None:
        while True:
            time.sleep(ASK_EVERY_S)
            with self._lock:
                for request, (began, due) in list(self._waiting.items()):
                    if time.monotonic() < due:
                        continue
                    del self._waiting[request]  # first: one whose question raises is not asked after again
                    found = self._ask(request)
                    now = time.monotonic()
                    if found is not None:
                        self._answers[request] = Answer(found, now)
                    elif now < began + GIVEN_UP_AFTER_S:
                        self._waiting[request] = (began, now + ASK_SHARE * (now - began))
                if not self._waiting:
                    self._thread = None
                    return
