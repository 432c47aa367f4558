"""Start-up check of the L2 tier: is every shard there, and how fast is it? (socket shell)

`up` and the chart's init step call it; what it measures is the gate's first estimate of the tier.
"""

import os
import time
from dataclasses import dataclass
from enum import StrEnum

from prime_inference.kv.l2.connection import Connection, ConnectionLost, DeadlinePassed, Unreachable
from prime_inference.kv.l2.settings import L2Settings, ShardAddress
from prime_inference.kv.l2.wire import MalformedReply, ReplyHeader, ReplyKind, command

PROBE_BYTES = 4 * 1024 * 1024
"""Long enough that bytes and not round trips are measured; a third of a chunk of GLM-5.3."""

PROBE_ROUNDS = 3
"""The first load meets a cold connection; the best of three is what the tier can do."""

PROBE_LIFE_MS = 60_000
"""The shard forgets the probe's value by itself, should this process die before it is deleted."""


class ShardState(StrEnum):
    READY = "ready"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    """It answers, but not to us: password missing or wrong, still loading its data, out of memory."""
    SLOW = "slow"
    """It did not answer within the deadline."""
    NOT_VALKEY = "not_valkey"
    """Something else listens there."""


@dataclass(frozen=True)
class ShardCheck:
    """`round_trip_s` and `bytes_per_s` (one load alone) are 0 unless the shard is ready; `cure` is empty if it is."""

    address: ShardAddress
    state: ShardState
    round_trip_s: float = 0.0
    bytes_per_s: float = 0.0
    cure: str = ""


def check_shards(settings: L2Settings, timeout_s: float = 5.0) -> list[ShardCheck]:
    """Ask each shard in turn to hold, return and forget a probe value, each within `timeout_s`."""
    return [_check(settings, address, time.monotonic() + timeout_s) for address in settings.shards]


def _check(settings: L2Settings, address: ShardAddress, deadline: float) -> ShardCheck:
    connection = Connection(address, settings.username, settings.password)
    try:
        return _measure(connection, address, deadline)
    except _Refusal as refusal:
        return ShardCheck(
            address,
            ShardState.REFUSED,
            cure=f"{address} answered {refusal}: check username and password_env, its memory limit and its log",
        )
    except Unreachable as error:
        return ShardCheck(
            address,
            ShardState.UNREACHABLE,
            cure=f"{error}: start this Valkey, or correct urls / shards in the L2 adapter's parameters",
        )
    except DeadlinePassed:
        return ShardCheck(
            address, ShardState.SLOW, cure=f"{address} accepts connections but answers too late: look at its load"
        )
    except (MalformedReply, ConnectionLost) as error:
        return ShardCheck(
            address,
            ShardState.NOT_VALKEY,
            cure=f"{address} does not speak RESP2 ({error}): is the port right, or TLS on?",
        )
    finally:
        connection.drop()


class _Refusal(Exception):
    """The shard answered with an error line."""


def _measure(connection: Connection, address: ShardAddress, deadline: float) -> ShardCheck:
    key = b"prime-inference:check:" + os.urandom(8).hex().encode()
    value = os.urandom(PROBE_BYTES)
    connection.open(deadline)
    round_trips_s, loads_s = [], []
    into = memoryview(bytearray(PROBE_BYTES))
    _ask(connection, deadline, b"SET", key, value, b"PX", b"%d" % PROBE_LIFE_MS)
    for _ in range(PROBE_ROUNDS):
        began = time.monotonic()
        _ask(connection, deadline, b"PING")
        asked = time.monotonic()
        if _ask(connection, deadline, b"GET", key).number != PROBE_BYTES:
            raise MalformedReply("the probe came back with another length")
        connection.read_value(into, deadline)
        round_trips_s.append(asked - began)
        loads_s.append(time.monotonic() - asked)
    if into != value:
        raise MalformedReply("the probe came back changed")
    _ask(connection, deadline, b"DEL", key)
    return ShardCheck(address, ShardState.READY, min(round_trips_s), PROBE_BYTES / min(loads_s))


def _ask(connection: Connection, deadline: float, *parts: bytes) -> ReplyHeader:
    connection.send([command(*parts)], deadline)
    header = connection.read_header(deadline)
    if header.kind is ReplyKind.ERROR:
        raise _Refusal(header.text.decode(errors="replace"))
    return header
