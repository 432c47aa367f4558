"""Interleavings of an exchange with the deadline, forced on a connection of plain values."""

from collections.abc import Callable

import pytest

from prime_inference.kv.l2.batch import Batch, Task
from prime_inference.kv.l2.connection import Connection, ConnectionLost, DeadlinePassed, Unreachable
from prime_inference.kv.l2.exchange import Served, serve
from prime_inference.kv.l2.outcomes import KeyOutcome, Operation
from prime_inference.kv.l2.settings import ShardAddress
from prime_inference.kv.l2.wire import ReplyHeader, ReplyKind

VALUE = b"value"
FOUND = ReplyHeader(ReplyKind.VALUE, number=len(VALUE))


class ScriptedConnection(Connection):
    """Replies are headers to return, errors to raise, or calls to make before going on to the next."""

    def __init__(self, *script: ReplyHeader | Exception | Callable[[], object]) -> None:
        super().__init__(ShardAddress("nowhere", 1))
        self.script = list(script)
        self.sent = b""
        self.discarded = 0
        self.drops = 0
        self.opening: Exception | None = None

    def open(self, deadline: float) -> None:
        if self.opening is not None:
            raise self.opening

    def drop(self) -> None:
        self.drops += 1

    def send(self, parts: list[bytes | memoryview], deadline: float) -> None:
        self.sent += b"".join(parts)

    def read_header(self, deadline: float) -> ReplyHeader:
        while True:
            step = self.script.pop(0)
            if isinstance(step, ReplyHeader):
                return step
            if isinstance(step, Exception):
                raise step
            step()

    def read_value(self, into: memoryview, deadline: float) -> None:
        into[:] = VALUE

    def discard_value(self, value_bytes: int, deadline: float) -> None:
        self.discarded += value_bytes


def loads(count: int, operation: Operation = Operation.LOAD) -> tuple[Batch, list[Task], list[bytearray]]:
    batch = Batch(1, operation, [b"k%d" % number for number in range(count)], 1.0, lambda batch: None)
    memory = [bytearray(len(VALUE)) for _ in range(count)]
    return batch, [Task(batch, number, memoryview(memory[number])) for number in range(count)], memory


def test_a_value_that_arrives_after_its_key_expired_is_read_past_and_not_written() -> None:
    batch, window, memory = loads(2)
    connection = ScriptedConnection(lambda: batch.settle_waiting(KeyOutcome.DEADLINE), FOUND, FOUND)
    assert serve(connection, window, []) == []
    assert batch.outcomes == [KeyOutcome.DEADLINE] * 2
    assert memory == [bytearray(len(VALUE))] * 2
    assert connection.discarded == 2 * len(VALUE)


def test_a_key_that_expired_before_its_turn_is_not_asked_for() -> None:
    batch, window, _ = loads(2)
    batch.settle(0, KeyOutcome.DEADLINE)
    connection = ScriptedConnection(FOUND)
    assert serve(connection, window, []) == []
    assert b"k0" not in connection.sent
    assert batch.outcomes == [KeyOutcome.DEADLINE, KeyOutcome.OK]


def test_a_store_that_expired_in_the_queue_sends_none_of_its_memory() -> None:
    batch, window, _ = loads(1, Operation.STORE)
    batch.settle_waiting(KeyOutcome.DEADLINE)
    connection = ScriptedConnection()
    assert serve(connection, window, []) == []
    assert connection.sent == b""


def test_a_store_in_flight_cannot_be_expired_under_the_sender() -> None:
    batch, window, _ = loads(1, Operation.STORE)
    expired: list[list[int]] = []
    connection = ScriptedConnection(
        lambda: expired.append(batch.settle_waiting(KeyOutcome.DEADLINE)), ReplyHeader(ReplyKind.STATUS, text=b"OK")
    )
    serve(connection, window, [])
    assert expired == [[]]
    assert batch.outcomes == [KeyOutcome.OK]


def test_a_lost_connection_is_charged_to_the_key_in_service_and_the_rest_is_tried_again() -> None:
    batch, window, _ = loads(3)
    left = serve(ScriptedConnection(FOUND, ConnectionLost("gone")), window, [])
    assert [task.index for task in left] == [1, 2]
    assert [task.losses for task in left] == [1, 0]
    left = serve(ScriptedConnection(ConnectionLost("gone again")), left, [])
    assert [task.index for task in left] == [2]
    assert batch.outcomes[1] is KeyOutcome.CONNECTION_LOST
    assert serve(ScriptedConnection(FOUND), left, []) == []
    assert batch.outcomes[2] is KeyOutcome.OK


def test_a_deadline_drops_the_connection_since_a_reply_is_still_on_its_way() -> None:
    batch, window, _ = loads(1)
    connection = ScriptedConnection(DeadlinePassed("late"))
    assert serve(connection, window, []) == []
    assert connection.drops == 1
    assert batch.outcomes == [KeyOutcome.DEADLINE]


def test_unreachable_is_the_callers_to_judge_and_claims_nothing() -> None:
    batch, window, _ = loads(1)
    connection = ScriptedConnection()
    connection.opening = Unreachable("refused")
    with pytest.raises(Unreachable):
        serve(connection, window, [])
    assert batch.claim(0)


def test_each_key_is_counted_once_with_the_bytes_it_moved() -> None:
    _, window, _ = loads(3)
    served: list[Served] = []
    serve(
        ScriptedConnection(FOUND, ReplyHeader(ReplyKind.NO_VALUE), ReplyHeader(ReplyKind.ERROR, text=b"ERR")),
        window,
        served,
    )
    assert [(outcome, value_bytes) for _, outcome, _, value_bytes in served] == [
        (KeyOutcome.OK, len(VALUE)),
        (KeyOutcome.ABSENT, 0),
        (KeyOutcome.SERVER_ERROR, 0),
    ]
