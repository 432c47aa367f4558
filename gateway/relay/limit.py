"""A time limit around a block, as asyncio.timeout sets one, for a third of its cost: several are set a request."""

import asyncio
from types import TracebackType
from typing import Self


class Limit:
    """`with Limit(seconds)` around awaits: at its end the task is cancelled, and what leaves the block is TimeoutError.

    A cancellation from elsewhere goes on as one, as asyncio.timeout's rules (uncancel) ask. `end` brings the end forward.
    """

    __slots__ = ("_cancelling", "_ended", "_exited", "_seconds", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        """Zero or less ends it at the loop's next turn."""
        self._seconds = seconds
        self._ended = self._exited = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._timer: asyncio.Handle = asyncio.get_running_loop().call_later(max(0.0, self._seconds), self.end)
        return self

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
