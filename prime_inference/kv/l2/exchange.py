"""One pipelined exchange: a window of requests out, then their replies in order, each settling its key.

Raises what the connection raises, with every key before the failing one settled; `serve` turns that into outcomes and
says which keys to try again. The key whose reply was awaited is the one charged with the failure.
"""

import importlib
from collections import deque
from collections.abc import Iterator
from itertools import groupby
from types import ModuleType

from prime_inference.kv.l2.batch import Batch, Task
from prime_inference.kv.l2.connection import Connection, ConnectionLost, DeadlinePassed, Unreachable
from prime_inference.kv.l2.outcomes import KeyOutcome, Operation
from prime_inference.kv.l2.wire import TERMINATOR, MalformedReply, ReplyHeader, ReplyKind, key_command, store_head


def _compiled() -> ModuleType | None:
    try:
        return importlib.import_module("prime_inference.kv.l2._exchange")
    except ImportError:  # no C compiler where this was installed: everything below does the same, more slowly
        return None


COMPILED = _compiled()
"""The same exchange in C (`_exchange.c`), which holds no interpreter lock; None where it was not built."""

CONNECTIONS_TRIED = 2
"""A connection that died while idle is noticed only by the next request; on a second, fresh one, it is the shard."""

FLIGHT_KEYS = 128
"""Requests sent together: one round trip for so many lookups."""

FLIGHT_BYTES = 512 * 1024
"""A flight ends with the key that passes this. With four times as much, values piled up in the socket and left the
processor's cache before they were read: loads took up to 1.5 times as long (docs/kv.md)."""

SEND_AHEAD_BYTES = 1024 * 1024
"""Behind a value longer than this nothing is asked for ahead, for the same reason; its transfer is long enough that the
round trip after it is noise, and the lane's other connections fill it."""

LARGEST_DISCARD_BYTES = 64 * 1024 * 1024
"""Reading past a foreign value keeps the connection; past a huge one a new connection is cheaper."""

_COMMANDS = {Operation.LOOKUP: b"EXISTS", Operation.LOAD: b"GET", Operation.DELETE: b"DEL"}


Served = tuple[Operation, KeyOutcome, int, int]
"""For the counters: operation, what was settled, how many keys, and the bytes moved into or out of their buffers."""


def serve(connection: Connection, window: list[Task], served: list[Served]) -> list[Task]:
    """Settle the keys of `window` in one exchange; those to be tried again, in order (empty when all are settled).
    What was settled here is appended to `served`.

    Each call settles a key, or charges a loss to one, so calling until nothing is left ends. The claims of keys handed
    back are released. After a failure the connection is dropped. Unreachable is left to the caller, who knows for how
    long not to try.
    """
    current = _Current(window)
    try:
        connection.open(window[0].batch.deadline)
        fd = connection.idle_fd() if COMPILED is not None else None
        if COMPILED is not None and fd is not None:
            _exchange_compiled(COMPILED, connection, fd, current, served)
        else:
            _exchange(connection, current, served)
    except Unreachable:
        _hand_back(window)
        raise
    except DeadlinePassed:
        connection.drop()
        current.fail(KeyOutcome.DEADLINE, served)
    except MalformedReply:
        connection.drop()
        current.fail(KeyOutcome.MALFORMED, served)
    except ConnectionLost:
        connection.drop()
        current.task.losses += 1
        if current.task.losses >= CONNECTIONS_TRIED:
            current.fail(KeyOutcome.CONNECTION_LOST, served)
    return _hand_back(window)


class _Current:
    """The key whose turn it is, known also after an error."""

    def __init__(self, window: list[Task]) -> None:
        self.window = window
        self.task = window[0]

    def fail(self, outcome: KeyOutcome, served: list[Served]) -> None:
        if self.task.batch.settle(self.task.index, outcome):
            served.append((self.task.batch.operation, outcome, 1, 0))


_OPERATIONS = (Operation.LOOKUP, Operation.LOAD, Operation.STORE, Operation.DELETE)
_CODES = (KeyOutcome.OK, KeyOutcome.ABSENT, KeyOutcome.WRONG_LENGTH, KeyOutcome.SERVER_ERROR)
_DONE, _DEADLINE, _MALFORMED, _LOST, _DROP = range(5)


def _exchange_compiled(
    compiled: ModuleType, connection: Connection, fd: int, current: _Current, served: list[Served]
) -> None:
    """`_exchange` in C, one call for the keys of one operation. All of them are claimed first, since nobody can be asked
    on the way; the deadline still ends the call, and what it left is handed back."""
    for operation, tasks in _of_one_operation(current.window):
        claimed = _claim(tasks)
        if not claimed:
            continue
        current.task = claimed[0]
        moves = operation in (Operation.LOAD, Operation.STORE)
        codes, status = compiled.exchange(
            fd,
            _OPERATIONS.index(operation),
            [task.key for task in claimed],
            [task.buffer for task in claimed] if moves else None,
            [task.batch.deadline for task in claimed],
            FLIGHT_BYTES,
            LARGEST_DISCARD_BYTES,
        )
        _settle_codes(claimed, codes, served)
        if len(codes) < len(claimed):
            current.task = claimed[len(codes)]
        if status == _DEADLINE:
            raise DeadlinePassed(f"{connection.address}")
        if status == _MALFORMED:
            raise MalformedReply(f"{connection.address}")
        if status == _LOST:
            raise ConnectionLost(f"{connection.address}")
        if status == _DROP:
            connection.drop()
            return


def _of_one_operation(tasks: list[Task]) -> Iterator[tuple[Operation, list[Task]]]:
    """Consecutive keys of one operation."""
    if tasks[0].batch is tasks[-1].batch:
        yield tasks[0].batch.operation, tasks
        return
    for operation, group in groupby(tasks, key=lambda task: task.batch.operation):
        yield operation, list(group)


def _runs(tasks: list[Task]) -> Iterator[tuple[Batch, list[Task]]]:
    """Consecutive keys of one batch: its lock is taken once for all of them."""
    if tasks and tasks[0].batch is tasks[-1].batch:  # first come, first served: nothing of another batch is between
        yield tasks[0].batch, tasks
        return
    began = 0
    for at in range(1, len(tasks) + 1):
        if at == len(tasks) or tasks[at].batch is not tasks[began].batch:
            yield tasks[began].batch, tasks[began:at]
            began = at


def _claim(tasks: list[Task]) -> list[Task]:
    claimed: list[Task] = []
    for batch, run in _runs(tasks):
        ours = batch.claim_each([task.index for task in run])
        if len(ours) == len(run):
            claimed += run
        else:
            kept = set(ours)
            claimed += [task for task in run if task.index in kept]
    return claimed


def _settle_codes(claimed: list[Task], codes: bytes, served: list[Served]) -> None:
    at = 0
    for batch, run in _runs(claimed[: len(codes)]):
        own = codes[at : at + len(run)]
        at += len(run)
        for code in sorted(set(own)):
            alike = (
                run
                if own.count(code) == len(run)
                else [task for task, its in zip(run, own, strict=True) if its == code]
            )
            outcome = _CODES[code]
            moved = sum([len(task.buffer) for task in alike]) if outcome is KeyOutcome.OK else 0
            settled = batch.settle_alike([task.index for task in alike], outcome)
            assert settled == len(alike), "a claimed key is settled by its lane alone"
            served.append((batch.operation, outcome, settled, moved))


def _exchange(connection: Connection, current: _Current, served: list[Served]) -> None:
    """Flight by flight. The next one leaves when the first reply of the last one begins, so that the shard has work
    while we read, and never so much that it prepares the last value before it has sent the first. A large value has its
    connection to itself."""
    waiting = deque(current.window)
    in_flight: deque[Task] = deque()
    first_of_last: Task | None = None
    while waiting or in_flight:
        if not in_flight:
            in_flight.extend(_send_flight(connection, waiting, current))
            if not in_flight:
                return
            first_of_last = in_flight[0]
        task = current.task = in_flight.popleft()
        batch = task.batch
        header = connection.read_header(batch.deadline)
        if task is first_of_last and waiting and len(task.buffer) <= SEND_AHEAD_BYTES:
            flight = _send_flight(connection, waiting, current)
            in_flight.extend(flight)
            first_of_last = flight[0] if flight else None
            current.task = task
        outcome = _take_reply(connection, task, header)
        if batch.settle(task.index, outcome):
            served.append((batch.operation, outcome, 1, len(task.buffer) if outcome is KeyOutcome.OK else 0))


def _send_flight(connection: Connection, waiting: deque[Task], current: _Current) -> list[Task]:
    """Ask for the next few keys that are not settled yet; those asked for."""
    asked: list[Task] = []
    parts: list[bytes | memoryview] = []
    flight_bytes = 0
    while waiting and len(asked) < FLIGHT_KEYS and flight_bytes < FLIGHT_BYTES:
        task = waiting.popleft()
        operation = task.batch.operation
        if operation is Operation.STORE:
            # Claimed from before its first byte leaves: a buffer that is reused while half sent would store garbage.
            if not task.batch.claim(task.index):
                continue
            parts += [store_head(task.key, len(task.buffer)), task.buffer, TERMINATOR]
        elif task.batch.is_settled(task.index):
            continue
        else:
            parts.append(key_command(_COMMANDS[operation], task.key))
        asked.append(task)
        flight_bytes += len(task.buffer)
    if asked:
        current.task = asked[0]
        # Requests without values are cheaper joined; values stay where they are.
        if asked[0].batch.operation is not Operation.STORE:
            parts = [b"".join(parts)]
        connection.send(parts, asked[0].batch.deadline)
    return asked


def _take_reply(connection: Connection, task: Task, header: ReplyHeader) -> KeyOutcome:
    if header.kind is ReplyKind.ERROR:
        return KeyOutcome.SERVER_ERROR
    operation = task.batch.operation
    if operation is Operation.LOAD:
        return _take_value(connection, task, header)
    if operation is Operation.STORE:
        if header.kind is ReplyKind.STATUS and header.text == b"OK":
            return KeyOutcome.OK
    elif header.kind is ReplyKind.INTEGER and header.number in (0, 1):
        return KeyOutcome.OK if header.number else KeyOutcome.ABSENT
    raise MalformedReply(f"{operation} answered with {header.kind}")


def _take_value(connection: Connection, task: Task, header: ReplyHeader) -> KeyOutcome:
    if header.kind is ReplyKind.NO_VALUE:
        return KeyOutcome.ABSENT
    if header.kind is not ReplyKind.VALUE:
        raise MalformedReply(f"load answered with {header.kind}")
    fits = header.number == len(task.buffer)
    if fits and task.batch.claim(task.index):
        connection.read_value(task.buffer, task.batch.deadline)
        return KeyOutcome.OK
    # A foreign length, or a key that the deadline settled meanwhile: its buffer is not ours to write to.
    if header.number > LARGEST_DISCARD_BYTES:
        connection.drop()  # the keys behind it find no connection and are asked for again on a new one
    else:
        connection.discard_value(header.number, task.batch.deadline)
    return KeyOutcome.WRONG_LENGTH


def _hand_back(window: list[Task]) -> list[Task]:
    left: list[Task] = []
    for batch, run in _runs(window):
        unsettled = set(batch.unsettled([task.index for task in run]))
        if unsettled:
            left += [task for task in run if task.index in unsettled]
    for task in left:
        task.batch.release(task.index)
    return left
