"""The L2 client's core in C beside the one in Python, and what only the one in C has to keep: other people's buffers."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.kv.l2 import native
from prime_inference.kv.l2.native import OUTCOMES, NativeCore
from prime_inference.kv.l2.outcomes import KeyOutcome, Operation
from prime_inference.kv.l2.partition import shard_of
from prime_inference.kv.l2.portable import PortableCore
from prime_inference.kv.l2.settings import L2Settings, ShardAddress
from tests.conftest import needs_on_ci
from tests.support.compiled_native import SOURCES, compiled

NOWHERE = L2Settings(shards=(ShardAddress("127.0.0.1", 1),))
LOAD, LOAD_SLOT = 1, 1
"""The operation's number, and with one thread a lane the slot that serves it."""


def module() -> ModuleType:
    needs_on_ci(compiled() is not None, "a C compiler with Python's headers")
    built = compiled()
    assert built is not None
    return built


@pytest.fixture(params=["native", "portable"])
def core(request: pytest.FixtureRequest) -> Iterator[NativeCore | PortableCore]:
    made = NativeCore(NOWHERE, module()) if request.param == "native" else PortableCore(NOWHERE)
    yield made
    made.close(2.0)


def test_outcomes_and_operations_have_the_same_numbers_in_c() -> None:
    assert tuple(KeyOutcome) == module().OUTCOMES
    head = (SOURCES / "pool.h").read_text()
    (members,) = re.findall(r"enum operation \{([^}]*)\}", head)
    assert members.replace(" ", "").lower().split(",") == [*Operation, "operations"]


@given(st.binary(max_size=200), st.integers(1, 64))
def test_a_key_has_the_same_shard_in_c(key: bytes, shards: int) -> None:
    assert module().crc32(key) % shards == shard_of(key, shards)


def test_buffers_that_do_not_fit_the_call_are_refused_before_anything_is_queued(
    core: NativeCore | PortableCore,
) -> None:
    now = time.monotonic()
    with pytest.raises(ValueError, match="2 keys but 1 buffers"):
        core.submit(Operation.LOAD, ["a", "b"], [memoryview(bytearray(1))], now, now + 1)
    with pytest.raises(ValueError, match="read-only"):
        core.submit(Operation.LOAD, ["a", "b"], [memoryview(bytearray(1)), memoryview(b"x")], now, now + 1)
    assert core.drain() == []


def test_a_batch_of_no_keys_is_complete_at_once(core: NativeCore | PortableCore) -> None:
    now = time.monotonic()
    batch = core.submit(Operation.LOOKUP, [], None, now, now + 1)
    assert batch.wait(0)
    assert core.drain() == [(batch.number, True, "", [])]


def test_a_refused_store_is_no_whole_and_says_what_became_of_its_keys(core: NativeCore | PortableCore) -> None:
    now = time.monotonic()
    batch = core.submit(Operation.STORE, ["a", "b"], [memoryview(b"x")] * 2, now, now + 5)
    assert batch.wait(5)
    assert batch.outcomes == [KeyOutcome.UNREACHABLE] * 2
    assert core.drain() == [(batch.number, False, "unreachable", [False, False])]
    assert core.drain() == []


def test_after_closing_a_batch_is_closed_at_once(core: NativeCore | PortableCore) -> None:
    core.close(2.0)
    now = time.monotonic()
    batch = core.submit(Operation.LOOKUP, ["a"], None, now, now + 5)
    assert batch.wait(0)
    assert batch.outcomes == [KeyOutcome.CLOSED]


def is_held(memory: bytearray) -> bool:
    try:
        memory.append(0)
    except BufferError:
        return True
    memory.pop()
    return False


@pytest.mark.parametrize("told_by", ["drain", "wait", "the next submit"])
def test_a_buffer_is_held_until_its_batch_is_complete_and_then_given_back(told_by: str) -> None:
    pool = module().Pool(1, (1, 1, 1), ())
    memory, now = bytearray(8), time.monotonic()
    batch = pool.submit(LOAD, ["k"], [memory], now, now + 60)
    assert not batch.wait(0)
    assert is_held(memory)
    pool.charge(LOAD_SLOT, 0)  # nothing is in its hands: no key is charged
    threading.Thread(target=pool.serve, args=(LOAD_SLOT, -1)).start()  # takes the window, and asks for a connection
    while pool.counts()[0] == []:
        time.sleep(0.001)
        pool.refuse(LOAD_SLOT, 0.0)
    if told_by == "drain":
        assert len(pool.drain()) == 1
    elif told_by == "wait":
        assert batch.wait(1)
    else:
        pool.submit(0, [], None, now, now + 1)
    assert not is_held(memory)
    pool.close()


def test_a_buffer_of_a_batch_that_was_refused_half_way_is_given_back() -> None:
    pool = module().Pool(1, (1, 1, 1), ())
    memory, now = bytearray(8), time.monotonic()
    with pytest.raises(ValueError, match="read-only"):
        pool.submit(LOAD, ["a", "b"], [memory, b"x"], now, now + 1)
    with pytest.raises(TypeError):
        pool.submit(LOAD, ["a", 2], [memory, memory], now, now + 1)
    assert not is_held(memory)


def test_what_nobody_serves_ends_at_its_deadline_the_later_batch_first() -> None:
    pool = module().Pool(1, (1, 1, 1), (0.1,))
    watch = threading.Thread(target=pool.watch)
    watch.start()
    now = time.monotonic()
    slow = pool.submit(0, ["a"], None, now, now + 0.4)
    quick = pool.submit(0, ["b"], None, now, now + 0.05)
    assert quick.wait(5)
    assert not slow.wait(0)
    assert slow.wait(5)
    assert time.monotonic() - now >= 0.4
    assert [OUTCOMES[code] for code in slow.codes() + quick.codes()] == [KeyOutcome.DEADLINE] * 2
    assert pool.timings()[0][0] == [1, 1]  # one within the edge, one after it
    pool.close()
    watch.join(5)
    assert not watch.is_alive()


@contextmanager
def served() -> Iterator[tuple[Any, socket.socket, list[float | None]]]:
    """A pool whose load slot is served over a pair of sockets; what serving said at its end."""
    pool, said = module().Pool(1, (1, 1, 1), ()), []
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=lambda: said.append(pool.serve(LOAD_SLOT, ours.fileno())))
    watch = threading.Thread(target=pool.watch)
    for each in (thread, watch):
        each.start()
    yield pool, theirs, said
    pool.close()
    ours.shutdown(socket.SHUT_RDWR)
    for each in (thread, watch):
        each.join(5)
        assert not each.is_alive()
    ours.close()
    theirs.close()


def test_a_reply_too_many_costs_the_connection_and_is_no_other_keys_value() -> None:
    with served() as (pool, theirs, said):
        into, now = bytearray(2), time.monotonic()
        batch = pool.submit(LOAD, ["a"], [into], now, now + 5)
        theirs.recv(4096)
        theirs.sendall(b"$2\r\nxy\r\n" + b"-ERR not asked\r\n")
        assert batch.wait(5)
        assert OUTCOMES[batch.codes()[0]] is KeyOutcome.OK
        assert into == b"xy"
        later = pool.submit(LOAD, ["b"], [bytearray(2)], now, now + 5)
        assert later.wait(5)
        assert OUTCOMES[later.codes()[0]] is KeyOutcome.MALFORMED
        until = time.monotonic() + 5
        while not said and time.monotonic() < until:
            time.sleep(0.001)
        assert said == [-1.0]


def test_a_value_behind_a_slow_one_is_not_written_after_its_own_deadline() -> None:
    with served() as (pool, theirs, _):
        first, second, now = bytearray(2), bytearray(2), time.monotonic()
        slow = pool.submit(LOAD, ["a", "a2"], [first, bytearray(2)], now, now + 5)
        theirs.recv(4096)
        quick = pool.submit(LOAD, ["b"], [second], now, now + 0.05)
        assert quick.wait(5)
        theirs.sendall(b"$2\r\nxy\r\n$2\r\nuv\r\n$2\r\nzz\r\n")
        assert slow.wait(5)
        assert first == b"xy"
        assert OUTCOMES[quick.codes()[0]] is KeyOutcome.DEADLINE
        assert second == bytearray(2)


def test_without_the_c_part_the_client_is_the_one_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    from prime_inference.kv.l2.client import ShardedL2Client

    monkeypatch.setattr(native, "COMPILED", None)
    client = ShardedL2Client("resp://127.0.0.1:1")
    assert isinstance(client._core, PortableCore)
    client.close()
