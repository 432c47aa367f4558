"""Every mixture of replies, cut anywhere by the network, through the lanes in C and through their fallback."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.kv.l2 import exchange
from prime_inference.kv.l2.batch import Batch, Task
from prime_inference.kv.l2.connection import Connection
from prime_inference.kv.l2.native import OUTCOMES
from prime_inference.kv.l2.outcomes import KeyOutcome, Operation
from prime_inference.kv.l2.settings import ShardAddress
from tests.conftest import needs_on_ci
from tests.support.compiled_native import compiled

SIZES = st.sampled_from([1, 2, 7, 100, 4090, 5000, 140_000])
"""On both sides of the read-ahead buffer and of the length from which a value travels alone."""

REPLIES = st.lists(
    st.tuples(
        SIZES, st.sampled_from([KeyOutcome.OK, KeyOutcome.ABSENT, KeyOutcome.SERVER_ERROR, KeyOutcome.WRONG_LENGTH])
    ),
    min_size=1,
    max_size=12,
)


class Attached(Connection):
    """A connection over a socket that is there."""

    def __init__(self, ours: socket.socket) -> None:
        super().__init__(ShardAddress("nowhere", 1))
        self._socket = ours


def value_of(index: int, size: int) -> bytes:
    return bytes((index + at) % 251 for at in range(size))


def reply_of(index: int, size: int, outcome: KeyOutcome) -> bytes:
    if outcome is KeyOutcome.ABSENT:
        return b"$-1\r\n"
    if outcome is KeyOutcome.SERVER_ERROR:
        return b"-ERR " + b"x" * (index * 97 % 300) + b"\r\n"
    value = value_of(index, size if outcome is KeyOutcome.OK else size + 1 + index)
    return b"$%d\r\n%b\r\n" % (len(value), value)


@contextmanager
def answering(raw: bytes, cuts: list[int]) -> Iterator[socket.socket]:
    """A socket whose peer sends `raw` cut at these places, and reads what it is asked."""
    ours, theirs = socket.socketpair()

    def answer() -> None:
        theirs.recv(1)  # what is said before it is asked is another test's
        edges = [0, *sorted({cut % len(raw) for cut in cuts}), len(raw)]
        for start, end in pairwise(edges):
            theirs.sendall(raw[start:end])
            time.sleep(0.0005)

    writer = threading.Thread(target=answer)
    writer.start()
    yield ours
    writer.join()
    ours.close()
    theirs.close()


def through_python(ours: socket.socket, keys: list[str], memory: list[bytearray]) -> list[KeyOutcome]:
    batch = Batch(1, Operation.LOAD, [key.encode() for key in keys], time.monotonic() + 20, lambda _: None)
    window = [Task(batch, index, memoryview(memory[index])) for index in range(len(keys))]
    assert exchange.serve(Attached(ours), window, []) == []
    return batch.outcomes


def through_c(ours: socket.socket, keys: list[str], memory: list[bytearray]) -> list[KeyOutcome]:
    built = compiled()
    needs_on_ci(built is not None, "a C compiler with Python's headers")
    assert built is not None
    pool, now = built.Pool(1, (1, 1, 1), ()), time.monotonic()
    batch = pool.submit(1, keys, memory, now, now + 20)
    thread = threading.Thread(target=pool.serve, args=(1, ours.fileno()))  # one thread a lane: the loads' is the second
    thread.start()
    assert batch.wait(20)
    pool.close()
    thread.join()
    return [OUTCOMES[code] for code in batch.codes()]


@pytest.mark.parametrize("through", [through_c, through_python])
@given(replies=REPLIES, cuts=st.lists(st.integers(0, 1 << 20), max_size=6))
@settings(deadline=None, max_examples=60)
def test_each_key_gets_its_own_reply_and_its_own_value(
    through: Callable[[socket.socket, list[str], list[bytearray]], list[KeyOutcome]],
    replies: list[tuple[int, KeyOutcome]],
    cuts: list[int],
) -> None:
    raw = b"".join(reply_of(index, size, outcome) for index, (size, outcome) in enumerate(replies))
    memory = [bytearray(size) for size, _ in replies]
    with answering(raw, cuts) as ours:
        outcomes = through(ours, [f"k{index}" for index in range(len(replies))], memory)
    assert outcomes == [outcome for _, outcome in replies]
    for index, (size, outcome) in enumerate(replies):
        if outcome is KeyOutcome.OK:
            assert memory[index] == value_of(index, size)
