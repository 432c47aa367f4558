"""Is LMCache's server there, and does it still know this worker? (thread shell, no sockets)

LMCache 0.5.5 cannot tell a server that was started again from one that never went away: its heartbeat's PING waits in
the socket until the new server answers it. The new server knows no worker, raises "context not registered" for every
transfer, and sends no reply for a handler that raised; so the engine's worker waits for `lmcache.mp.mq_timeout` (300 s
by default) twice a load, and that is the hang. On the scheduler's side LMCache 0.5.5 never starts its heartbeat, so one
late answer leaves the tier unused for good.

Here a loss is an event of its own: whoever sees it (the watch, or a call without an answer) says so, calls in flight end
at once, calls made meanwhile are not sent, and only a recovery begun after the loss ends it.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

NO_ANSWER = object()
"""In a table of substitutes: the call ends with a TimeoutError, which LMCache takes for a failed transfer."""


class Health(threading.Event):
    """In the place of LMCache's event. `clear` is a loss; `set` does nothing: only `restore` ends a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.losses = 0
        self.turn = 0
        """Grows with every sign of trouble, also during a loss: a recovery begun before the last one proves nothing."""
        self._turn_lock = threading.Lock()
        self._on_loss: list[Callable[[], None]] = []
        super().set()

    def on_loss(self, act: Callable[[], None]) -> None:
        self._on_loss.append(act)

    def clear(self) -> None:
        with self._turn_lock:
            self.turn += 1
            self.losses += self.is_set()
            super().clear()
        for act in self._on_loss:
            act()

    def set(self) -> None:
        """LMCache's heartbeat calls this when any server answers a PING, also one that knows no worker."""

    def restore(self, turn: int) -> bool:
        """End the loss, if `turn` (read before the recovery began) is still the present one."""
        with self._turn_lock:
            if turn == self.turn:
                super().set()
            return self.is_set()


class ServerLost(TimeoutError):
    """The server went away, or did not answer in time. A TimeoutError, since LMCache handles those."""


class Answer:
    """An LMCache future whose missing answer is a loss."""

    def __init__(self, inner: Any, health: Health) -> None:
        self._inner = inner
        self._health = health

    def query(self) -> bool:
        done: bool = self._inner.query()
        return done

    def wait(self, timeout: float | None = None) -> bool:
        done: bool = self._inner.wait(timeout)
        if not done:
            self._health.clear()
        return done

    def result(self, timeout: float | None = None) -> Any:
        if not self.wait(timeout):
            raise ServerLost("LMCache's server did not answer in time")
        return self._inner.result(0)


class GuardedClient:
    """LMCache's request client. Calls named in `substitutes` end at a loss with their substitute, or with ServerLost
    where that is NO_ANSWER; all others pass through."""

    def __init__(
        self, client: Any, health: Health, substitutes: Mapping[str, object], new_future: Callable[[], Any]
    ) -> None:
        self._client = client
        self._health = health
        self._substitutes = substitutes
        self._new_future = new_future
        self._lock = threading.Lock()
        self._in_flight: list[tuple[Any, object]] = []
        health.on_loss(self._end_all)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)
        if name not in self._substitutes:
            return call
        substitute = self._substitutes[name]

        def guarded(*arguments: Any) -> Answer:
            if not self._health.is_set():
                future = self._new_future()
                _end(future, substitute)
                return Answer(future, self._health)
            future = call(*arguments)
            with self._lock:
                self._in_flight = [each for each in self._in_flight if not each[0].query()]
                self._in_flight.append((future, substitute))
            if not self._health.is_set():  # lost between the check and the entry in the list
                self._end_all()
            return Answer(future, self._health)

        return guarded

    def _end_all(self) -> None:
        with self._lock:
            ending, self._in_flight = self._in_flight, []
        for future, substitute in ending:
            if not future.query():
                _end(future, substitute)


def _end(future: Any, substitute: object) -> None:
    if substitute is NO_ANSWER:
        future.set_exception(ServerLost("LMCache's server went away"))
    else:
        future.set_result(substitute)
