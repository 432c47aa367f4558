"""What a client hears while its stream has not begun. Most begin in time, and then this is one timer."""

import asyncio
from collections.abc import Awaitable, Callable


class KeepAlive:
    """Calls `say` after so many seconds, and again each time they have passed, until `end`."""

    def __init__(self, seconds: float, say: Callable[[], Awaitable[None]]) -> None:
        self._seconds = seconds
        self._say = say
        self._saying: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(seconds, self._start)

    def _start(self) -> None:
        self._saying = asyncio.get_running_loop().create_task(self._say_on())

    async def _say_on(self) -> None:
        while True:
            await self._say()
            await asyncio.sleep(self._seconds)

    async def end(self) -> None:
        """Nothing is said after this. Does not wait where nothing was. Raises what `say` raised."""
        self._timer.cancel()
        if self._saying is not None:
            self._saying.cancel()
            await asyncio.wait({self._saying})
            if not self._saying.cancelled():
                self._saying.result()
