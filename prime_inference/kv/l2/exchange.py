"""One pipelined exchange: a window of requests out, then their replies in order, each settling its key.

Raises what the connection raises, with every key before the failing one settled; `serve` turns that into outcomes and
says which keys to try again. The key whose reply was awaited is the one charged with the failure.
"""

from collections.abc import Callable
from dataclasses import dataclass

from prime_inference.kv.l2.batch import Task
from prime_inference.kv.l2.connection import Connection, ConnectionLost, DeadlinePassed, Unreachable
from prime_inference.kv.l2.outcomes import KeyOutcome, Operation
from prime_inference.kv.l2.wire import TERMINATOR, MalformedReply, ReplyHeader, ReplyKind, command, store_head

CONNECTIONS_TRIED = 2
"""A connection that died while idle is noticed only by the next request; on a second, fresh one, it is the shard."""

LARGEST_DISCARD_BYTES = 64 * 1024 * 1024
"""Reading past a foreign value keeps the connection; past a huge one a new connection is cheaper."""

_COMMANDS = {Operation.LOOKUP: b"EXISTS", Operation.LOAD: b"GET", Operation.DELETE: b"DEL"}


@dataclass(frozen=True)
class ServedKey:
    """For the counters: what was settled, and the bytes that were moved into or out of the caller's buffer."""

    operation: Operation
    outcome: KeyOutcome
    value_bytes: int


def serve(connection: Connection, window: list[Task], record: Callable[[ServedKey], None]) -> list[Task]:
    """Settle the keys of `window` in one exchange; those to be tried again, in order (empty when all are settled).

    Each call settles a key, or charges a loss to one, so calling until nothing is left ends. The claims of keys handed
    back are released. After a failure the connection is dropped. Unreachable is left to the caller, who knows for how
    long not to try.
    """
    current = _Current(window)
    try:
        _exchange(connection, current, record)
    except Unreachable:
        _hand_back(window)
        raise
    except DeadlinePassed:
        connection.drop()
        current.fail(KeyOutcome.DEADLINE, record)
    except MalformedReply:
        connection.drop()
        current.fail(KeyOutcome.MALFORMED, record)
    except ConnectionLost:
        connection.drop()
        current.task.losses += 1
        if current.task.losses >= CONNECTIONS_TRIED:
            current.fail(KeyOutcome.CONNECTION_LOST, record)
    return _hand_back(window)


class _Current:
    """The key whose turn it is, known also after an error."""

    def __init__(self, window: list[Task]) -> None:
        self.window = window
        self.task = window[0]

    def fail(self, outcome: KeyOutcome, record: Callable[[ServedKey], None]) -> None:
        if self.task.batch.settle(self.task.index, outcome):
            record(ServedKey(self.task.batch.operation, outcome, 0))


def _exchange(connection: Connection, current: _Current, record: Callable[[ServedKey], None]) -> None:
    window = current.window
    connection.open(window[0].batch.deadline)
    asked: list[Task] = []
    for task in window:
        if task.batch.operation is Operation.STORE:
            current.task = task
            # Claimed from before its first byte leaves: a buffer that is reused while half sent would store garbage.
            if task.batch.claim(task.index):
                head = store_head(task.key, len(task.buffer))
                connection.send([head, task.buffer, TERMINATOR], task.batch.deadline)
                asked.append(task)
        elif not task.batch.is_settled(task.index):
            asked.append(task)
    requests = [
        command(_COMMANDS[task.batch.operation], task.key)
        for task in asked
        if task.batch.operation is not Operation.STORE
    ]
    if requests:
        connection.send([b"".join(requests)], window[0].batch.deadline)
    for task in asked:
        current.task = task
        outcome = _take_reply(connection, task)
        moved = len(task.buffer) if outcome is KeyOutcome.OK else 0
        if task.batch.settle(task.index, outcome):
            record(ServedKey(task.batch.operation, outcome, moved))


def _take_reply(connection: Connection, task: Task) -> KeyOutcome:
    header = connection.read_header(task.batch.deadline)
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
    left = [task for task in window if not task.batch.is_settled(task.index)]
    for task in left:
        task.batch.release(task.index)
    return left
