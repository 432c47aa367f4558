"""The client's lanes, deadlines and completions in Python: the fallback where the C part was not built, and the reference that
says what it does (thread shell)."""

import heapq
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from operator import attrgetter

from prime_inference.kv.l2.batch import NO_BUFFER, Batch, Task
from prime_inference.kv.l2.exchange import Served
from prime_inference.kv.l2.lane import Lane
from prime_inference.kv.l2.outcomes import Completion, KeyOutcome, Operation
from prime_inference.kv.l2.partition import shard_of
from prime_inference.kv.l2.settings import L2Settings
from prime_inference.kv.l2.timings import BatchTimings

_LANES = {
    Operation.LOOKUP: "lookup",
    Operation.DELETE: "lookup",
    Operation.LOAD: "load",
    Operation.STORE: "store",
}


class PortableCore:
    """The same calls as `native.NativeCore`."""

    def __init__(self, settings: L2Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, Operation, KeyOutcome]] = Counter()
        self._bytes: Counter[tuple[str, Operation]] = Counter()
        self._timings = BatchTimings()
        self._number = 0
        self._closed = False
        self._completed: list[Completion] = []
        self._counts_lock = threading.Lock()
        self.event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Not by `close`: a thread about to signal would write to whatever has the number by then.
        weakref.finalize(self, os.close, self.event_fd).atexit = False
        self._due: list[tuple[float, int, Batch]] = []
        self._due_changed = threading.Condition()
        kinds = {"lookup": 1, "load": settings.load_connections, "store": settings.store_connections}
        self._lanes = {
            kind: [
                Lane(
                    address,
                    settings.username,
                    settings.password,
                    f"{kind}-{shard}",
                    connections,
                    partial(self._record, shard),
                )
                for shard, address in enumerate(settings.shards)
            ]
            for kind, connections in kinds.items()
        }
        self._watch = threading.Thread(target=self._expire_due, name="l2-deadlines", daemon=True)
        self._watch.start()

    def submit(
        self,
        operation: Operation,
        keys: Sequence[str],
        buffers: Sequence[memoryview] | None,
        began: float,
        deadline: float,
    ) -> Batch:
        """Queue a batch. Raises ValueError for buffers that are read-only or not as many as keys."""
        if buffers is not None and len(buffers) != len(keys):
            raise ValueError(f"{len(keys)} keys but {len(buffers)} buffers")
        if operation is Operation.LOAD and any(map(attrgetter("readonly"), buffers or ())):
            raise ValueError("a buffer to load into is read-only")
        with self._lock:
            self._number += 1
            number = self._number
        batch = Batch(number, operation, [key.encode() for key in keys], deadline, self._complete, began)
        if not keys:
            batch.complete()
            return batch
        views = [buffer.cast("B") for buffer in buffers] if buffers is not None else [NO_BUFFER] * len(keys)
        tasks = [Task(batch, index, view) for index, view in enumerate(views)]
        shards = len(self._settings.shards)
        by_shard: dict[int, list[Task]] = {0: tasks} if shards == 1 else {}
        if shards > 1:
            for task in tasks:
                by_shard.setdefault(shard_of(task.key, shards), []).append(task)
        with self._due_changed:
            heapq.heappush(self._due, (deadline, number, batch))
            if self._due[0][2] is batch:
                self._due_changed.notify()
        for shard, its_own in by_shard.items():
            if not self._lanes[_LANES[operation]][shard].put(its_own):
                for task in its_own:
                    batch.settle(task.index, KeyOutcome.CLOSED)
        return batch

    def drain(self) -> list[Completion]:
        with suppress(BlockingIOError):  # nothing was signalled since
            os.eventfd_read(self.event_fd)
        # After the read: what completes in between is taken now, and its signal wakes somebody for nothing.
        with self._lock:
            completed, self._completed = self._completed, []
        return completed

    def counts(self) -> tuple[dict[tuple[str, Operation, KeyOutcome], int], dict[tuple[str, Operation], int]]:
        with self._counts_lock:
            return dict(self._counts), dict(self._bytes)

    def timings(self) -> BatchTimings:
        with self._lock:
            return deepcopy(self._timings)

    def close(self, timeout_s: float) -> None:
        self._closed = True
        for lanes in self._lanes.values():
            for lane in lanes:
                lane.close(timeout_s)
        with self._due_changed:
            self._due_changed.notify()
        self._watch.join(timeout_s)

    def _complete(self, batch: Batch) -> None:
        succeeded = batch.succeeded
        # A store is all or nothing to LMCache; of lookups and loads it reads the answers key by key.
        whole = all(succeeded) if batch.operation is Operation.STORE else True
        error = "" if whole else ", ".join(sorted(set(batch.outcomes) - {KeyOutcome.OK}))
        took_s = time.monotonic() - batch.began
        with self._lock:
            self._timings.took(batch.operation, took_s)
            self._completed.append((batch.number, whole, error, succeeded))
        # Outside the lock, which whoever is woken takes at once.
        os.eventfd_write(self.event_fd, 1)

    def _record(self, shard: int, served: list[Served]) -> None:
        name = str(self._settings.shards[shard])
        with self._counts_lock:
            for operation, outcome, keys, value_bytes in served:
                self._counts[name, operation, outcome] += keys
                self._bytes[name, operation] += value_bytes

    def _expire_due(self) -> None:
        while True:
            with self._due_changed:
                if self._closed:
                    return
                wait_s = self._due[0][0] - time.monotonic() if self._due else None
                if wait_s is None or wait_s > 0.0:
                    self._due_changed.wait(wait_s)
                    continue
                batch = heapq.heappop(self._due)[2]
            for index in batch.settle_waiting(KeyOutcome.DEADLINE):
                shard = shard_of(batch.keys[index], len(self._settings.shards))
                self._record(shard, [(batch.operation, KeyOutcome.DEADLINE, 1, 0)])
