"""A few clients that ask a running stack one prompt after the other, half of them prompts that were asked before, until they
are told to stop. Every question is a sample, whatever came of it."""

import random
import threading
import time
from typing import Any

import httpx

from benchmarks.kv_tiers.fidelity import SENTENCES
from tests.support.stack import Stack

CLIENTS = 2
PAUSE_S = 2.0
REPEATED = 2
"""Prompts that are asked again and again."""
SENTENCES_A_PROMPT = 20
"""About 500 tokens, of which one or two whole chunks are kept: more would drive everything else out of L1."""
HUNG_AFTER_S = 120.0
"""A question without any answer for so long hangs. Computing a prompt takes 1 to 10 s on two busy cores."""


def prompt_of(number: int) -> str:
    lines = [SENTENCES[n % 3].format(number, (31 * number + n) % 89) for n in range(SENTENCES_A_PROMPT)]
    return f"Log {number}. {' '.join(lines)} How many lamps?"


class SteadyLoad:
    def __init__(self, stack: Stack, began: float, clients: int = CLIENTS, pause_s: float = PAUSE_S) -> None:
        """`began`: zero of the samples' clock. `pause_s`: between an answer and a client's next question."""
        self.samples: list[dict[str, Any]] = []
        self._stack = stack
        self._pause_s = pause_s
        self._ended = threading.Event()
        self._began = began
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(clients)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Waits for the questions that are out."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self, client: int) -> None:
        draw, asked = random.Random(client), 0
        while not self._ended.wait(self._pause_s):
            again = draw.random() < 0.5
            asked += 1
            number = draw.randrange(REPEATED) if again else 1000 * (client + 1) + asked
            self.samples.append({"client": client, "again": again, **self._ask(number)})

    def _ask(self, number: int) -> dict[str, Any]:
        """`status` is None for a connection that ended without an answer, and `hung` for one that never ended."""
        at = time.monotonic()
        told: dict[str, Any] = {
            "at_s": round(at - self._began, 3),
            "status": None,
            "hung": False,
            "cached_tokens": None,
        }
        try:
            answer = self._stack.chat(prompt_of(number), timeout_s=HUNG_AFTER_S, max_tokens=8, temperature=0)
            told["status"] = answer.status_code
            if answer.status_code == 200:
                told["cached_tokens"] = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        except httpx.TimeoutException:
            told["hung"] = True
        except httpx.TransportError as error:
            told["error"] = type(error).__name__
        return told | {"seconds": round(time.monotonic() - at, 3)}
