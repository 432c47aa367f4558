"""The client's queues, exchanges, deadlines and completions in C (`native/`), and the threads that serve them (thread shell).

A thread stays in C, without the interpreter's lock, as long as its connection is open and its keys end in outcomes. What is
to be decided comes back here: when to connect, with which credentials, how long a dead shard is not asked.
"""

import importlib
import threading
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from prime_inference.kv.l2.connection import Connection, ConnectionLost, DeadlinePassed, Unreachable
from prime_inference.kv.l2.lane import RECONNECT_PAUSE_S
from prime_inference.kv.l2.outcomes import Completion, KeyOutcome, Operation
from prime_inference.kv.l2.settings import L2Settings
from prime_inference.kv.l2.timings import BUCKETS_S, BatchTimings
from prime_inference.kv.l2.wire import MalformedReply


def _compiled() -> ModuleType | None:
    try:
        return importlib.import_module("prime_inference.kv.l2._native")
    except ImportError:  # no C compiler where this was installed: portable.py does the same, more slowly
        return None


COMPILED = _compiled()
"""None where it was not built."""

OPERATIONS = tuple(Operation)
OUTCOMES = tuple(KeyOutcome)
_CODES = {operation: code for code, operation in enumerate(OPERATIONS)}
_NO_CONNECTION = -1


class NativeBatch:
    """One submitted batch, as `batch.Batch` is to whoever waits for it."""

    __slots__ = ("_batch", "number", "operation")

    def __init__(self, batch: Any, operation: Operation) -> None:
        self._batch = batch
        self.number: int = batch.number
        self.operation = operation

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until every key is settled; False if `timeout_s` passed first."""
        return bool(self._batch.wait(timeout_s))

    @property
    def outcomes(self) -> list[KeyOutcome]:
        """Per key, final once the batch is complete; until then what is not settled reads as DEADLINE."""
        return [OUTCOMES[code] for code in self._batch.codes()]

    @property
    def succeeded(self) -> list[bool]:
        return [code == 0 for code in self._batch.codes()]


class NativeCore:
    """The same calls as `portable.PortableCore`."""

    def __init__(self, settings: L2Settings, compiled: ModuleType) -> None:
        self._settings = settings
        threads = (1, settings.load_connections, settings.store_connections)
        self._pool = compiled.Pool(len(settings.shards), threads, BUCKETS_S)
        self._submit = self._pool.submit
        self.event_fd: int = self._pool.event_fd
        slots = [
            (f"l2-{kind}-{shard}-{number}", Connection(address, settings.username, settings.password))
            for kind, count in zip(("lookup", "load", "store"), threads, strict=True)
            for shard, address in enumerate(settings.shards)
            for number in range(count)
        ]
        self._connections = [connection for _, connection in slots]
        self._threads = [
            threading.Thread(target=self._serve, args=(slot, connection), name=name, daemon=True)
            for slot, (name, connection) in enumerate(slots)
        ]
        self._threads.append(threading.Thread(target=self._pool.watch, name="l2-deadlines", daemon=True))
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        operation: Operation,
        keys: Sequence[str],
        buffers: Sequence[memoryview] | None,
        began: float,
        deadline: float,
    ) -> NativeBatch:
        """Queue a batch. Raises ValueError for buffers that are read-only or not as many as keys."""
        return NativeBatch(self._submit(_CODES[operation], keys, buffers, began, deadline), operation)

    def drain(self) -> list[Completion]:
        completed: list[Completion] = self._pool.drain()
        return completed

    def counts(self) -> tuple[dict[tuple[str, Operation, KeyOutcome], int], dict[tuple[str, Operation], int]]:
        keys, moved = self._pool.counts()
        name = [str(address) for address in self._settings.shards]
        return (
            {(name[shard], OPERATIONS[operation], OUTCOMES[outcome]): n for shard, operation, outcome, n in keys},
            {(name[shard], OPERATIONS[operation]): value_bytes for shard, operation, value_bytes in moved},
        )

    def timings(self) -> BatchTimings:
        timings = BatchTimings()
        for operation, (by_bucket, total_s, slowest_s) in zip(OPERATIONS, self._pool.timings(), strict=True):
            if not any(by_bucket):
                continue
            timings.counts.update({(operation, index): count for index, count in enumerate(by_bucket) if count})
            timings.total_s[operation], timings.slowest_s[operation] = total_s, slowest_s
        return timings

    def close(self, timeout_s: float) -> None:
        self._pool.close()
        for connection in self._connections:
            connection.interrupt()
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._pool.close()  # gives back the buffers of what ended meanwhile

    def _serve(self, slot: int, connection: Connection) -> None:
        fd = _NO_CONNECTION
        while (wanted := self._pool.serve(slot, fd)) is not None:
            fd = _NO_CONNECTION
            connection.drop()
            if wanted > 0.0:
                fd = self._open(slot, connection, wanted)
        connection.drop()

    def _open(self, slot: int, connection: Connection, deadline: float) -> int:
        """The new connection's socket; without one, the slot's keys are told or charged."""
        try:
            connection.open(deadline)
            return connection.fileno()
        except Unreachable:
            self._pool.refuse(slot, time.monotonic() + RECONNECT_PAUSE_S)
        except DeadlinePassed:
            self._charge(slot, KeyOutcome.DEADLINE)
        except ConnectionLost:
            self._charge(slot, KeyOutcome.CONNECTION_LOST)
        except MalformedReply:
            self._charge(slot, KeyOutcome.MALFORMED)
        connection.drop()
        return _NO_CONNECTION

    def _charge(self, slot: int, outcome: KeyOutcome) -> None:
        self._pool.charge(slot, OUTCOMES.index(outcome))
