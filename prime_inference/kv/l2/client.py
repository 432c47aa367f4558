"""The object that LMCache's multiprocess server loads as `native_plugin`.

    --l2-adapter '{"type": "native_plugin", "module_path": "prime_inference.kv.l2.client",
                   "class_name": "ShardedL2Client",
                   "adapter_params": {"urls": "resp://valkey-{shard}:6379", "shards": 8}}'

Threads: per shard one for lookups and deletes and the configured number for loads and for stores; one for deadlines. What
they run is in C where that was built (native.py), else in Python (portable.py): the same outcomes.
A submit call only queues. Two ways to learn the end of a batch, over the same objects:

- `lookup`, `load`, `store`, `delete` return the batch, which carries its own completion: nothing is registered.
- `submit_batch_*` return its number and the batch comes back from `drain_completions`, as LMCache wants it. LMCache's
  adapter takes one lock around submit and register and looks the number up under the same lock.
"""

import threading
import time
from collections.abc import Sequence

from prime_inference.kv.l2 import native
from prime_inference.kv.l2.batch import Batch
from prime_inference.kv.l2.native import NativeBatch, NativeCore
from prime_inference.kv.l2.outcomes import Completion, KeyOutcome, Operation
from prime_inference.kv.l2.portable import PortableCore
from prime_inference.kv.l2.settings import L2Settings, parse_settings
from prime_inference.kv.l2.timings import BatchTimings

CLOSE_TIMEOUT_S = 2.0
"""How long `close` waits for threads; they are daemons, so one stuck in name lookup cannot keep the process."""


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
        self._timeouts_s = {
            Operation.LOOKUP: settings.lookup_timeout_s,
            Operation.DELETE: settings.lookup_timeout_s,
            Operation.LOAD: settings.load_timeout_s,
            Operation.STORE: settings.store_timeout_s,
        }
        self._lock = threading.Lock()
        self._closed = False
        compiled = native.COMPILED
        self._core = PortableCore(settings) if compiled is None else NativeCore(settings, compiled)

    # ── for callers in this process ──

    def lookup(self, keys: Sequence[str]) -> Batch | NativeBatch:
        return self._submit(Operation.LOOKUP, keys, None, None)

    def load(
        self, keys: Sequence[str], buffers: Sequence[memoryview], timeout_s: float | None = None
    ) -> Batch | NativeBatch:
        """Fill each buffer with its key's value. `timeout_s` shortens the configured one for this batch."""
        return self._submit(Operation.LOAD, keys, buffers, timeout_s)

    def store(self, keys: Sequence[str], buffers: Sequence[memoryview]) -> Batch | NativeBatch:
        """The buffers must not change until the batch is complete."""
        return self._submit(Operation.STORE, keys, buffers, None)

    def delete(self, keys: Sequence[str]) -> Batch | NativeBatch:
        return self._submit(Operation.DELETE, keys, None, None)

    # ── LMCache's native-client interface ──

    def event_fd(self) -> int:
        """Readable while there are completions to drain."""
        return self._core.event_fd

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
        return self._core.drain()

    def counts(self) -> tuple[dict[tuple[str, Operation, KeyOutcome], int], dict[tuple[str, Operation], int]]:
        """Keys by (shard, operation, outcome) and value bytes moved by (shard, operation), since the start. A key may be
        counted just after its batch has been told."""
        return self._core.counts()

    def timings(self) -> BatchTimings:
        """How long batches took since the start: a copy."""
        return self._core.timings()

    def close(self) -> None:
        """Settle everything as closed and end the threads. Idempotent; later submits settle at once as closed."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._core.close(CLOSE_TIMEOUT_S)

    # ── internals ──

    def _submit(
        self, operation: Operation, keys: Sequence[str], buffers: Sequence[memoryview] | None, timeout_s: float | None
    ) -> Batch | NativeBatch:
        limit_s = self._timeouts_s[operation]
        if timeout_s is not None and timeout_s < limit_s:
            limit_s = timeout_s
        began = time.monotonic()
        return self._core.submit(operation, keys, buffers, began, began + limit_s)
