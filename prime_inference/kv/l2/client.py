"""The object that LMCache's multiprocess server loads as `native_plugin` (thread shell).

    --l2-adapter '{"type": "native_plugin", "module_path": "prime_inference.kv.l2.client",
                   "class_name": "ShardedL2Client",
                   "adapter_params": {"urls": "resp://valkey-{shard}:6379", "shards": 8}}'

Threads: per shard one for lookups and deletes and the configured number for loads and for stores; one for deadlines.
A submit call only queues. Two ways to learn the end of a batch, over the same objects:

- `lookup`, `load`, `store`, `delete` return the Batch, which carries its own completion: nothing is registered.
- `submit_batch_*` return its number and the batch comes back from `drain_completions`, as LMCache wants it. LMCache's
  adapter takes one lock around submit and register and looks the number up under the same lock.
"""

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
from prime_inference.kv.l2.outcomes import KeyOutcome, Operation
from prime_inference.kv.l2.partition import shard_of
from prime_inference.kv.l2.settings import L2Settings, parse_settings
from prime_inference.kv.l2.timings import BatchTimings

CLOSE_TIMEOUT_S = 2.0
"""How long `close` waits for threads; they are daemons, so one stuck in name lookup cannot keep the process."""

Completion = tuple[int, bool, str, list[bool]]
"""(batch number, went as a whole, error text, per key): LMCache's native-client tuple."""


class ShardedL2Client:
    """Keyword arguments: see `settings.parse_settings`. Raises L2SettingsError; opens no connection."""

    def __init__(self, urls: str | Sequence[str], shards: int | None = None, **params: object) -> None:
        self._start(parse_settings(urls, shards, **params))  # type: ignore[arg-type]  # checked by parse_settings

    @classmethod
    def from_settings(cls, settings: L2Settings) -> "ShardedL2Client":
        client = cls.__new__(cls)
        client._start(settings)
        return client

    def _start(self, settings: L2Settings) -> None:
        self.settings = settings
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, Operation, KeyOutcome]] = Counter()
        self._bytes: Counter[tuple[str, Operation]] = Counter()
        self._timings = BatchTimings()
        self._number = 0
        self._closed = False
        self._completed: list[Completion] = []
        self._counts_lock = threading.Lock()
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Not by `close`: a thread about to signal would write to whatever has the number by then.
        weakref.finalize(self, os.close, self._event_fd).atexit = False
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

    # ── for callers in this process ──

    def lookup(self, keys: Sequence[str]) -> Batch:
        return self._submit(Operation.LOOKUP, keys, None, None)

    def load(self, keys: Sequence[str], buffers: Sequence[memoryview], timeout_s: float | None = None) -> Batch:
        """Fill each buffer with its key's value. `timeout_s` shortens the configured one for this batch."""
        return self._submit(Operation.LOAD, keys, buffers, timeout_s)

    def store(self, keys: Sequence[str], buffers: Sequence[memoryview]) -> Batch:
        """The buffers must not change until the batch is complete."""
        return self._submit(Operation.STORE, keys, buffers, None)

    def delete(self, keys: Sequence[str]) -> Batch:
        return self._submit(Operation.DELETE, keys, None, None)

    # ── LMCache's native-client interface ──

    def event_fd(self) -> int:
        """Readable while there are completions to drain."""
        return self._event_fd

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        return self.lookup(keys).number

    def submit_batch_get(self, keys: Sequence[str], buffers: Sequence[memoryview]) -> int:
        return self.load(keys, buffers).number

    def submit_batch_set(self, keys: Sequence[str], buffers: Sequence[memoryview]) -> int:
        return self.store(keys, buffers).number

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        return self.delete(keys).number

    def drain_completions(self) -> list[Completion]:
        """Every batch completed since the last call, each once."""
        with suppress(BlockingIOError):  # nothing was signalled since
            os.eventfd_read(self._event_fd)
        # After the read: what completes in between is taken now, and its signal wakes somebody for nothing.
        with self._lock:
            completed, self._completed = self._completed, []
        return completed

    def counts(self) -> tuple[dict[tuple[str, Operation, KeyOutcome], int], dict[tuple[str, Operation], int]]:
        """Keys by (shard, operation, outcome) and value bytes moved by (shard, operation), since the start. A key is
        counted just after its batch has been told."""
        with self._counts_lock:
            return dict(self._counts), dict(self._bytes)

    def timings(self) -> BatchTimings:
        """How long batches took since the start: a copy."""
        with self._lock:
            return deepcopy(self._timings)

    def close(self) -> None:
        """Settle everything as closed and end the threads. Idempotent; later submits settle at once as closed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for lanes in self._lanes.values():
            for lane in lanes:
                lane.close(CLOSE_TIMEOUT_S)
        with self._due_changed:
            self._due_changed.notify()
        self._watch.join(CLOSE_TIMEOUT_S)

    # ── internals ──

    def _submit(
        self, operation: Operation, keys: Sequence[str], buffers: Sequence[memoryview] | None, timeout_s: float | None
    ) -> Batch:
        if buffers is not None and len(buffers) != len(keys):
            raise ValueError(f"{len(keys)} keys but {len(buffers)} buffers")
        if operation is Operation.LOAD and any(map(attrgetter("readonly"), buffers or ())):
            raise ValueError("a buffer to load into is read-only")
        lanes, limit_s = {
            Operation.LOOKUP: ("lookup", self.settings.lookup_timeout_s),
            Operation.DELETE: ("lookup", self.settings.lookup_timeout_s),
            Operation.LOAD: ("load", self.settings.load_timeout_s),
            Operation.STORE: ("store", self.settings.store_timeout_s),
        }[operation]
        began = time.monotonic()
        deadline = began + min(limit_s, limit_s if timeout_s is None else timeout_s)
        with self._lock:
            self._number += 1
            number = self._number
        batch = Batch(number, operation, [key.encode() for key in keys], deadline, self._complete, began)
        if not keys:
            batch.complete()
            return batch
        views = [buffer.cast("B") for buffer in buffers] if buffers is not None else [NO_BUFFER] * len(keys)
        tasks = [Task(batch, index, view) for index, view in enumerate(views)]
        shards = len(self.settings.shards)
        by_shard: dict[int, list[Task]] = {0: tasks} if shards == 1 else {}
        if shards > 1:
            for task in tasks:
                by_shard.setdefault(shard_of(task.key, shards), []).append(task)
        with self._due_changed:
            heapq.heappush(self._due, (deadline, number, batch))
            if self._due[0][2] is batch:
                self._due_changed.notify()
        for shard, its_own in by_shard.items():
            if not self._lanes[lanes][shard].put(its_own):
                for task in its_own:
                    batch.settle(task.index, KeyOutcome.CLOSED)
        return batch

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
        os.eventfd_write(self._event_fd, 1)

    def _record(self, shard: int, served: list[Served]) -> None:
        name = str(self.settings.shards[shard])
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
                shard = shard_of(batch.keys[index], len(self.settings.shards))
                self._record(shard, [(batch.operation, KeyOutcome.DEADLINE, 1, 0)])
