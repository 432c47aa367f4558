"""Sees when the tier answers a lookup (one thread, alive while there are any unanswered).

The scheduler's thread waits for a step of the model, for seconds while long prompts are computed, and LMCache's lookup takes
two questions, so the scheduler alone would learn of an answer several steps after it came, or give it up.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

ASK_EVERY_S = 0.002
"""Also the error of an answer's time, and at most what it adds to an answer."""

PACE_S = 0.0005
"""Between two questions, whatever the number of lookups: each is one message to LMCache's server."""

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
        self._until: dict[str, float] = {}
        self._answers: dict[str, Answer] = {}
        self._thread: threading.Thread | None = None

    def watch(self, request: str) -> Answer | None:
        """The answer if there is one at once, as when the server is away."""
        with self._lock:
            found = self._ask(request)
            if found is not None:
                self._answers[request] = Answer(found, time.monotonic())
                return self._answers[request]
            self._until[request] = time.monotonic() + GIVEN_UP_AFTER_S
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
            self._until.pop(request, None)
            self._answers.pop(request, None)

    def stop(self) -> None:
        """The thread ends by itself at its next turn."""
        with self._lock:
            self._until.clear()

    def _run(self) -> None:
        while True:
            time.sleep(max(ASK_EVERY_S, PACE_S * len(self._until)))
            with self._lock:
                for request, until in list(self._until.items()):
                    del self._until[request]  # first: one whose question raises is not asked after again
                    found = self._ask(request)
                    now = time.monotonic()
                    if found is not None:
                        self._answers[request] = Answer(found, now)
                    elif now < until:
                        self._until[request] = until
                if not self._until:
                    self._thread = None
                    return
