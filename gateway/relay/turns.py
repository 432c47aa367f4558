"""Whose turn it is: the pieces of running streams, so many a turn of the event loop.

At some thousand events a second dozens of streams are ready whenever the loop looks. Served all at once they make its turn
long, and a new request needs several turns, one after another, until its first event is with its client. So of each turn
running streams get a part, and wait for the next in the order in which they came; what opens a stream is done at once.
"""

import asyncio
from collections import deque
from typing import Protocol

LEAST_A_TURN = 6
"""About a sixth of a millisecond's work. A look at the sockets between is a tenth of that."""

SHARE_A_TURN = 24
"""One in so many of those that wait, where that is more: a crowd of new requests cannot hold the others up for long."""


class Served(Protocol):
    def serve(self) -> None: ...


class Turns:
    """Of one event loop. Nothing here raises or waits."""

    def __init__(self) -> None:
        self._waiting: deque[Served] = deque()
        self._coming = False

    def add(self, stream: Served) -> None:
        """Once until it is served."""
        self._waiting.append(stream)
        if not self._coming:
            self._coming = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        waiting = self._waiting
        for _ in range(min(len(waiting), max(LEAST_A_TURN, len(waiting) // SHARE_A_TURN))):
            waiting.popleft().serve()
        self._coming = bool(waiting)
        if waiting:
            asyncio.get_running_loop().call_soon(self._turn)
