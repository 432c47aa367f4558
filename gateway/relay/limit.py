"""A time limit around a block, as asyncio.timeout sets one, for a third of its cost: several are set a request."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

LOOK_TURNS = 3
"""Turns of the event loop until what lies in a socket has woken its reader: timers come before sockets in uvloop's turn,
what a socket wakes runs in the next, and what it then does is over in the one after."""


def after_a_look(then: Callable[[], object], turns: int = LOOK_TURNS) -> None:
    """Calls it when the sockets have been looked at. A process that stood still finds its timers due before it reads what
    came in time: the other side is not to be blamed for that."""
    if turns == 0:
        then()
    else:
        asyncio.get_running_loop().call_soon(after_a_look, then, turns - 1)


class Limit:
    """`with Limit(seconds)` around awaits: at its end the task is cancelled, and what leaves the block is TimeoutError.

    A cancellation from elsewhere goes on as one, as asyncio.timeout's rules (uncancel) ask. `end` brings the end forward.
    """

    __slots__ = ("_cancelling", "_ended", "_exited", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        """Zero or less ends it within a few turns of the loop."""
        self._seconds = seconds
        self._ended = self._exited = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._timer: asyncio.Handle = asyncio.get_running_loop().call_later(max(0.0, self._seconds), self._due)
        return self

    def _due(self) -> None:
        if not self._exited:
            after_a_look(self.end)

    def end(self) -> None:
        """Now, unless the block has been left. Not to be called from the block's own task."""
        if not self._ended and not self._exited:
            self._ended = True
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exited = True
        self._timer.cancel()
        if self._ended and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise TimeoutError from error
