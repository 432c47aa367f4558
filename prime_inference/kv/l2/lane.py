"""The threads of one shard for one kind of work (thread shell): a queue, and one connection a thread.

Lookups, loads and stores have lanes of their own, so that a lookup never stands behind gigabytes of values and a burst
of stores never delays a load. Within a lane keys are served first come, first served, and all have the same timeout:
so the key in service always has the earliest deadline, and when it ends the next has not yet expired for its sake.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from prime_inference.kv.l2.batch import Task
from prime_inference.kv.l2.connection import Connection, Unreachable
from prime_inference.kv.l2.exchange import ServedKey, serve
from prime_inference.kv.l2.outcomes import KeyOutcome
from prime_inference.kv.l2.settings import ShardAddress

WINDOW_KEYS = 64
"""Requests sent before their replies are read: hides the round trip of small values."""

WINDOW_BYTES = 4 * 1024 * 1024
"""A window ends with the key that passes this: beyond it a round trip is noise, and other threads share the work."""

RECONNECT_PAUSE_S = 0.25
"""After a failed connect its lane answers at once for this long, so that a dead shard costs lookups nothing."""


class Lane:
    """`connections` threads serving keys of one shard until `close`."""

    def __init__(
        self,
        address: ShardAddress,
        username: str,
        password: str,
        name: str,
        connections: int,
        record: Callable[[ShardAddress, ServedKey], None],
    ) -> None:
        self._address = address
        self._record = record
        self._queue: deque[Task] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._idle = 0
        self._unreachable_until = 0.0
        self._connections = [Connection(address, username, password) for _ in range(connections)]
        self._threads = [
            threading.Thread(target=self._run, args=(connection,), name=f"l2-{name}-{number}", daemon=True)
            for number, connection in enumerate(self._connections)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, tasks: list[Task]) -> bool:
        """Queue keys, never blocking on a socket; False if the lane is closed and will not serve them."""
        with self._wake:
            if self._closed:
                return False
            self._queue.extend(tasks)
            self._wake.notify(min(len(tasks), max(1, self._idle)))
            return True

    def close(self, timeout_s: float) -> None:
        """Serve nothing more, end the exchanges in flight, settle what is left as closed. Idempotent."""
        with self._wake:
            self._closed = True
            left = list(self._queue)
            self._queue.clear()
            self._wake.notify_all()
        for task in left:
            self._settle(task, KeyOutcome.CLOSED)
        for connection in self._connections:
            connection.interrupt()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, connection: Connection) -> None:
        while window := self._take():
            left = window
            while left:
                if self._closed or time.monotonic() < self._unreachable_until:
                    outcome = KeyOutcome.CLOSED if self._closed else KeyOutcome.UNREACHABLE
                    for task in left:
                        self._settle(task, outcome)
                    break
                try:
                    left = serve(connection, left, self._served)
                except Unreachable:
                    self._unreachable_until = time.monotonic() + RECONNECT_PAUSE_S
        connection.drop()

    def _take(self) -> list[Task]:
        """The next window; empty when the lane is closed."""
        with self._wake:
            while not self._queue and not self._closed:
                self._idle += 1
                self._wake.wait()
                self._idle -= 1
            # An equal share: one thread must not take all keys of a batch while the others find none.
            share = -(-len(self._queue) // len(self._threads))
            window: list[Task] = []
            window_bytes = 0
            while self._queue and len(window) < min(share, WINDOW_KEYS) and window_bytes < WINDOW_BYTES:
                task = self._queue.popleft()
                window.append(task)
                window_bytes += len(task.buffer)
            return window

    def _settle(self, task: Task, outcome: KeyOutcome) -> None:
        task.batch.release(task.index)
        if task.batch.settle(task.index, outcome):
            self._served(ServedKey(task.batch.operation, outcome, 0))

    def _served(self, served: ServedKey) -> None:
        self._record(self._address, served)
