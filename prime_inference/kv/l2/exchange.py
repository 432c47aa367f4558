"""One pipelined exchange: a window of requests out, then their replies in order, each settling its key.

Raises what the connection raises, with every key before the failing one settled; `serve` turns that into outcomes and
says which keys to try again. The key whose reply was awaited is the one charged with the failure.
"""

from collections import deque
from collections.abc import Iterator

from prime_inference.kv.l2.batch import Batch, Task
from prime_inference.kv.l2.connection import Connection, ConnectionLost, DeadlinePassed, Unreachable
from prime_inference.kv.l2.outcomes import KeyOutcome, Operation
from prime_inference.kv.l2.wire import TERMINATOR, MalformedReply, ReplyHeader, ReplyKind, key_command, store_head

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
