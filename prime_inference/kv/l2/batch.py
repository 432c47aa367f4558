"""One submitted batch: who may touch a buffer, what became of each key, and when the batch is complete.

Each key is waiting, claimed or settled. A lane claims a key before it reads from or writes to its buffer, so the
deadline may settle any key that is *not* claimed, at any moment, without a late reply writing into memory that the
caller has meanwhile given to somebody else. A claimed key is settled by its lane, whose socket calls all end by the
same deadline.

The batch itself holds the results and the signal of completion. There is no table from batch number to waiter, and so
no moment between submit and register at which a completion could find nobody.
"""

import threading
from collections.abc import Callable, Sequence

from prime_inference.kv.l2.outcomes import KeyOutcome, Operation

_WAITING, _CLAIMED, _SETTLED = range(3)

NO_BUFFER = memoryview(b"")


class Batch:
    """Thread-safe. `on_complete` is called exactly once, by the thread that settles the last key, with no lock held."""

    def __init__(
        self,
        number: int,
        operation: Operation,
        keys: Sequence[bytes],
        deadline: float,
        on_complete: Callable[["Batch"], None],
        began: float = 0.0,
    ) -> None:
        """`began`, `deadline`: of the submit call, on one clock."""
        self.number = number
        self.began = began
        self.operation = operation
        self.keys = keys
        self.deadline = deadline
        self.outcomes = [KeyOutcome.DEADLINE] * len(keys)
        self._states = bytearray(len(keys))
        self._unsettled = len(keys)
        self._lock = threading.Lock()
        self._complete = threading.Event()
        self._on_complete = on_complete

    def claim(self, index: int) -> bool:
        """Take the right to touch this key's buffer; False if the key is settled (its buffer is no longer ours)."""
        with self._lock:
            if self._states[index] != _WAITING:
                return False
            self._states[index] = _CLAIMED
            return True

    def claim_each(self, indices: Sequence[int]) -> list[int]:
        """`claim` for several keys in one turn of the lock: those that are claimed now."""
        with self._lock:
            states = self._states
            claimed = [index for index in indices if states[index] == _WAITING]
            for index in claimed:
                states[index] = _CLAIMED
        return claimed

    def release(self, index: int) -> None:
        """Give a claim back unsettled (the exchange failed and will be tried again). A no-op if it was not claimed."""
        with self._lock:
            if self._states[index] == _CLAIMED:
                self._states[index] = _WAITING

    def is_settled(self, index: int) -> bool:
        return self._states[index] == _SETTLED

    def settle(self, index: int, outcome: KeyOutcome) -> bool:
        """Set what became of a key; False, and nothing changes, if it was settled before."""
        with self._lock:
            if self._states[index] == _SETTLED:
                return False
            self._states[index] = _SETTLED
            self.outcomes[index] = outcome
            self._unsettled -= 1
            if self._unsettled:
                return True
        self.complete()
        return True

    def settle_alike(self, indices: Sequence[int], outcome: KeyOutcome) -> int:
        """`settle` for several keys in one turn of the lock: how many were not settled before."""
        with self._lock:
            states, outcomes = self._states, self.outcomes
            new = [index for index in indices if states[index] != _SETTLED]
            for index in new:
                states[index] = _SETTLED
                outcomes[index] = outcome
            self._unsettled -= len(new)
            complete = bool(new) and not self._unsettled
        if complete:
            self.complete()
        return len(new)

    def unsettled(self, indices: Sequence[int]) -> list[int]:
        states = self._states
        return [index for index in indices if states[index] != _SETTLED]

    def settle_waiting(self, outcome: KeyOutcome) -> list[int]:
        """Settle every key that no lane has claimed; the indices of those settled here."""
        with self._lock:
            waiting = [index for index, state in enumerate(self._states) if state == _WAITING]
            for index in waiting:
                self._states[index] = _SETTLED
                self.outcomes[index] = outcome
            self._unsettled -= len(waiting)
            if not waiting or self._unsettled:
                return waiting
        self.complete()
        return waiting

    def complete(self) -> None:
        """Signal completion. Called by the last settle; by the client only for a batch of no keys."""
        self._complete.set()
        self._on_complete(self)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until every key is settled; False if `timeout_s` passed first."""
        return self._complete.wait(timeout_s)

    @property
    def succeeded(self) -> list[bool]:
        """Per key: did it go as asked? Final once the batch is complete."""
        return [outcome is KeyOutcome.OK for outcome in self.outcomes]


class Task:
    """One key's place in a lane's queue. `buffer` is empty for operations that move no value."""

    __slots__ = ("batch", "buffer", "index", "key", "losses")

    def __init__(self, batch: Batch, index: int, buffer: memoryview = NO_BUFFER) -> None:
        self.batch = batch
        self.index = index
        self.key = batch.keys[index]
        self.buffer = buffer
        self.losses = 0  # connections that ended while this key's reply was awaited
