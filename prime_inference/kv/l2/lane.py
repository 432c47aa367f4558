"""The threads of one shard for one kind of work (thread shell): a queue, and one connection a thread.

Lookups, loads and stores have lanes of their own, so that a lookup never stands behind gigabytes of values and a burst
of stores never delays a load. Within a lane keys are served first come, first served, and all have the same timeout:
so the key in service always has the earliest deadline, and when it ends the next has not yet expired for its sake.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from prime_inference.kv.l2.batch import Task
from prime_inference.kv.l2.connection import Connection, Unreachable
from prime_inference.kv.l2.exchange import Served, serve
from prime_inference.kv.l2.outcomes import KeyOutcome
from prime_inference.kv.l2.settings import ShardAddress

WINDOW_KEYS = 256
"""Requests sent before their replies are read: hides the round trip of small values."""

WINDOW_BYTES = 16 * 1024 * 1024
"""A window ends with the key that passes this, and a batch wakes one thread for every so many bytes. Threads share one
interpreter lock: a second one for a few small values costs more in turns of the lock than it saves."""

SHARE_BYTES = 8 * 1024 * 1024
"""A window with this much in it takes no more than its equal share, so that large values spread over the threads."""

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
        record: Callable[[list[Served]], None],
    ) -> None:
        self._record = record
        self._queue: deque[Task] = deque()
        self._lock = threading.Lock()
        self._wake: SimpleQueue[None] = SimpleQueue()
        """One entry wakes one thread, which serves until the queue is empty. Not a condition, whose waiter is woken while
        the lock that it needs next is still held: two turns of the interpreter lock more for every batch."""
        self._closed = False
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
        with self._lock:
            if self._closed:
                return False
            self._queue.extend(tasks)
        windows = 1 + sum([len(task.buffer) for task in tasks]) // WINDOW_BYTES
        for _ in range(min(windows, len(self._threads))):
            self._wake.put(None)
        return True

    def close(self, timeout_s: float) -> None:
        """Serve nothing more, end the exchanges in flight, settle what is left as closed. Idempotent."""
        with self._lock:
            self._closed = True
            left = list(self._queue)
            self._queue.clear()
        for _ in self._threads:
            self._wake.put(None)
        self._record(_settle(left, KeyOutcome.CLOSED))
        for connection in self._connections:
            connection.interrupt()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, connection: Connection) -> None:
        while window := self._take():
            left = window
            served: list[Served] = []
            while left:
                if self._closed or time.monotonic() < self._unreachable_until:
                    outcome = KeyOutcome.CLOSED if self._closed else KeyOutcome.UNREACHABLE
                    served += _settle(left, outcome)
                    break
                try:
                    left = serve(connection, left, served)
                except Unreachable:
                    self._unreachable_until = time.monotonic() + RECONNECT_PAUSE_S
            self._record(served)
        connection.drop()

    def _take(self) -> list[Task]:
        """The next window; empty when the lane is closed."""
        while True:
            with self._lock:
                if self._closed:
                    return []
                if self._queue:
                    return self._window()
            self._wake.get()

    def _window(self) -> list[Task]:
        share = -(-len(self._queue) // len(self._threads))
        window: list[Task] = []
        window_bytes = 0
        while (
            self._queue
            and len(window) < WINDOW_KEYS
            and window_bytes < WINDOW_BYTES
            and (len(window) < share or window_bytes < SHARE_BYTES)
        ):
            task = self._queue.popleft()
            window.append(task)
            window_bytes += len(task.buffer)
        return window


def _settle(tasks: list[Task], outcome: KeyOutcome) -> list[Served]:
    """Settle keys that will not be served; those that the deadline had not settled before."""
    served: list[Served] = []
    for task in tasks:
        task.batch.release(task.index)
        if task.batch.settle(task.index, outcome):
            served.append((task.batch.operation, outcome, 1, 0))
    return served
