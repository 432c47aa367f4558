"""The L2 client against a misbehaving shard: each fault is a miss or an error of its own key, within the deadline,
the connection is usable again, and nothing unfilled is ever reported as loaded."""

import random
import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from prime_inference.kv.l2 import native
from prime_inference.kv.l2.client import ShardedL2Client
from prime_inference.kv.l2.outcomes import KeyOutcome
from tests.chaos.kv.misbehaving_valkey import (
    MisbehavingValkey,
    Reply,
    bulk,
    half_value_then_close,
    misbehaving_valkey,
    says,
    trickle,
)
from tests.conftest import needs_on_ci
from tests.support.compiled_native import compiled

VALUE_BYTES = 200_000
DEADLINE_S = 0.4
SLACK_S = 0.6
"""Scheduling on two busy cores, not part of the client's promise."""
AMPLE_S = 4.0
"""A deadline for what must succeed, on such cores, too."""
UNTOUCHED = 0xEE


@pytest.fixture(params=["compiled", "python"], autouse=True)
def core_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here holds for the lanes in C and for their fallback."""
    if request.param == "compiled":
        needs_on_ci(compiled() is not None, "a C compiler with Python's headers")
    monkeypatch.setattr(native, "COMPILED", compiled() if request.param == "compiled" else None)


@pytest.fixture
def valkey() -> Iterator[MisbehavingValkey]:
    with misbehaving_valkey() as server:
        yield server


def client_of(*servers: MisbehavingValkey, **params: object) -> ShardedL2Client:
    return ShardedL2Client(
        [f"resp://127.0.0.1:{server.port}" for server in servers],
        **{
            "load_timeout_s": DEADLINE_S,
            "lookup_timeout_s": DEADLINE_S,
            "store_timeout_s": DEADLINE_S,
            "load_connections": 1,
            "store_connections": 1,
            **params,
        },
    )


def value_of(key: str) -> bytes:
    return random.Random(key).randbytes(VALUE_BYTES)


def buffers(count: int) -> list[memoryview]:
    return [memoryview(bytearray([UNTOUCHED]) * VALUE_BYTES) for _ in range(count)]


def load(client: ShardedL2Client, keys: list[str]) -> tuple[list[KeyOutcome], list[memoryview], float]:
    into = buffers(len(keys))
    began = time.monotonic()
    batch = client.load(keys, into)
    assert batch.wait(DEADLINE_S + SLACK_S), "no answer: the caller would hang"
    return batch.outcomes, into, time.monotonic() - began


FAULTS: dict[str, tuple[Reply, KeyOutcome]] = {
    "missing key": (says(b"$-1\r\n"), KeyOutcome.ABSENT),
    "value too short": (says(bulk(b"x" * (VALUE_BYTES - 1))), KeyOutcome.WRONG_LENGTH),
    "value too long": (says(bulk(b"x" * (VALUE_BYTES + 1))), KeyOutcome.WRONG_LENGTH),
    "empty value": (says(bulk(b"")), KeyOutcome.WRONG_LENGTH),
    "error reply": (says(b"-LOADING the dataset in memory\r\n"), KeyOutcome.SERVER_ERROR),
    "short read": (half_value_then_close, KeyOutcome.CONNECTION_LOST),
    "closed socket": (says(b"", close=True), KeyOutcome.CONNECTION_LOST),
    "closed inside the first line": (says(b"$2000", close=True), KeyOutcome.CONNECTION_LOST),
    "closed before the terminator": (
        says(bulk(b"x" * VALUE_BYTES).removesuffix(b"\r\n"), close=True),
        KeyOutcome.CONNECTION_LOST,
    ),
    "wrong terminator": (says(bulk(b"x" * VALUE_BYTES).removesuffix(b"\r\n") + b"xx"), KeyOutcome.MALFORMED),
    "another kind of reply": (says(b":1\r\n"), KeyOutcome.MALFORMED),
    "no RESP at all": (says(b"HTTP/1.1 400 Bad Request\r\n\r\n"), KeyOutcome.MALFORMED),
    "negative length": (says(b"$-2\r\n"), KeyOutcome.MALFORMED),
    "length that is no number": (says(b"$2_0\r\n"), KeyOutcome.MALFORMED),
    "length beyond any value": (says(b"$99999999999\r\n"), KeyOutcome.MALFORMED),
    "length beyond what is worth reading": (says(b"$300000000\r\n"), KeyOutcome.WRONG_LENGTH),
    "first line without end": (says(b"$" + b"1" * 100_000), KeyOutcome.MALFORMED),
    "slow server": (says(bulk(b"x" * VALUE_BYTES), after_s=3.0), KeyOutcome.DEADLINE),
    "trickling server": (trickle, KeyOutcome.DEADLINE),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_its_own_keys_and_the_client_goes_on(valkey: MisbehavingValkey, fault: str) -> None:
    reply, expected = FAULTS[fault]
    keys = ["before", "bad", "after"]
    valkey.values = {key.encode(): value_of(key) for key in keys}
    valkey.on_get[b"bad"] = reply
    client = client_of(valkey)
    try:
        outcomes, into, took_s = load(client, keys)
        assert outcomes[0] is KeyOutcome.OK
        assert outcomes[1] is expected
        # One connection, and no time left behind a slow key: the next key of the batch shares its fate, no worse.
        assert outcomes[2] is (KeyOutcome.DEADLINE if expected is KeyOutcome.DEADLINE else KeyOutcome.OK)
        assert took_s < DEADLINE_S + SLACK_S
        for key, outcome, buffer in zip(keys, outcomes, into, strict=True):
            if outcome is KeyOutcome.OK:
                assert buffer == value_of(key)
        if expected in (KeyOutcome.ABSENT, KeyOutcome.WRONG_LENGTH, KeyOutcome.SERVER_ERROR):
            assert into[1].tobytes() == bytes([UNTOUCHED]) * VALUE_BYTES

        valkey.on_get.clear()
        outcomes, into, _ = load(client, keys)
        assert outcomes == [KeyOutcome.OK] * 3
        assert [bytes(buffer) for buffer in into] == [value_of(key) for key in keys]
    finally:
        client.close()


@pytest.mark.parametrize("fault", ["missing key", "value too short", "error reply"])
def test_a_plain_miss_keeps_the_connection(valkey: MisbehavingValkey, fault: str) -> None:
    valkey.values = {b"k": value_of("k")}
    valkey.on_get[b"bad"] = FAULTS[fault][0]
    client = client_of(valkey)
    try:
        for _ in range(20):
            load(client, ["bad", "k"])
        assert valkey.connections == 1
    finally:
        client.close()


def test_a_reply_that_nobody_asked_for_is_no_other_keys_value(valkey: MisbehavingValkey) -> None:
    """It would be taken for the next key's, and that key's for the one behind it."""
    valkey.values = {key.encode(): value_of(key) for key in ("chatty", "k")}
    valkey.on_get[b"chatty"] = says(bulk(value_of("chatty")) + bulk(value_of("unasked")))
    client = client_of(valkey)
    try:
        assert load(client, ["chatty"])[0] == [KeyOutcome.OK]
        time.sleep(0.05)  # until all of it has arrived
        outcomes, into, _ = load(client, ["k"])
        assert outcomes == [KeyOutcome.MALFORMED]
        assert into[0].tobytes() == bytes([UNTOUCHED]) * VALUE_BYTES
        outcomes, into, _ = load(client, ["k"])
        assert outcomes == [KeyOutcome.OK]
        assert into[0] == value_of("k")
    finally:
        client.close()


def test_nothing_is_written_after_the_deadline_told_the_caller(valkey: MisbehavingValkey) -> None:
    """The memory belongs to another prompt by then: a late value must not land in it."""
    valkey.values = {b"late": value_of("late")}
    valkey.on_get[b"late"] = says(bulk(value_of("late")), after_s=DEADLINE_S + 0.2)
    client = client_of(valkey)
    try:
        outcomes, into, _ = load(client, ["late"])
        assert outcomes == [KeyOutcome.DEADLINE]
        before = into[0].tobytes()
        time.sleep(0.6)
        assert into[0].tobytes() == before
    finally:
        client.close()


def test_keys_queued_behind_a_stalled_one_are_told_within_their_own_deadline(valkey: MisbehavingValkey) -> None:
    valkey.values = {b"k": value_of("k")}
    valkey.on_get[b"stalled"] = says(b"", after_s=6.0)
    client = client_of(valkey, load_timeout_s=AMPLE_S)
    try:
        first = client.load(["stalled"], buffers(1), timeout_s=DEADLINE_S)
        time.sleep(DEADLINE_S / 2)
        second = client.load(["k"], buffers(1))
        assert second.wait(AMPLE_S + SLACK_S)
        assert first.outcomes == [KeyOutcome.DEADLINE]
        assert second.outcomes == [KeyOutcome.OK]  # the lane gave the stalled connection up in time
    finally:
        client.close()


def test_a_lookup_does_not_wait_behind_loads(valkey: MisbehavingValkey) -> None:
    valkey.on_get[b"stalled"] = says(b"", after_s=3.0)
    valkey.values = {b"k": b"v"}
    client = client_of(valkey, load_timeout_s=2.0)
    try:
        client.load(["stalled"], buffers(1))
        began = time.monotonic()
        found = client.lookup(["k", "absent"])
        assert found.wait(DEADLINE_S)
        assert found.outcomes == [KeyOutcome.OK, KeyOutcome.ABSENT]
        assert time.monotonic() - began < DEADLINE_S / 2
    finally:
        client.close()


def test_a_hanging_name_lookup_does_not_hold_the_caller(
    valkey: MisbehavingValkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No timeout of a socket covers the resolver; only the client's own watch over deadlines does."""

    def hang(*_args: object, **_kwargs: object) -> None:
        time.sleep(DEADLINE_S + SLACK_S + 0.5)
        raise OSError("no such name after all")

    monkeypatch.setattr("prime_inference.kv.l2.connection.socket.create_connection", hang)
    client = client_of(valkey)
    try:
        outcomes, into, took_s = load(client, ["k"])
        assert outcomes == [KeyOutcome.DEADLINE]
        assert took_s < DEADLINE_S + SLACK_S
        assert into[0].tobytes() == bytes([UNTOUCHED]) * VALUE_BYTES
    finally:
        client.close()
    counts, _ = client.counts()  # a key is counted just after its caller is told; all are once the client is closed
    assert list(counts.values()) == [1]


def test_a_restarted_server_is_found_again_at_the_first_request(valkey: MisbehavingValkey) -> None:
    valkey.values = {b"k": value_of("k")}
    client = client_of(valkey)
    try:
        assert load(client, ["k"])[0] == [KeyOutcome.OK]
        valkey.stop()
        valkey.start()
        outcomes, into, _ = load(client, ["k"])
        assert outcomes == [KeyOutcome.OK]
        assert into[0] == value_of("k")
    finally:
        client.close()


def test_a_dead_shard_costs_its_own_keys_only_and_comes_back(valkey: MisbehavingValkey) -> None:
    with misbehaving_valkey() as other:
        keys = [f"key-{number}" for number in range(16)]
        client = client_of(valkey, other)
        try:
            assert client.store(keys, [memoryview(value_of(key)) for key in keys]).wait(2.0)
            on_other = [key.encode() in other.values for key in keys]
            assert 0 < sum(on_other) < len(keys)
            other.stop()
            outcomes, _, took_s = load(client, keys)
            assert [outcome is KeyOutcome.OK for outcome in outcomes] == [not there for there in on_other]
            assert took_s < DEADLINE_S
            began = time.monotonic()
            assert client.lookup(keys).wait(1.0)
            assert time.monotonic() - began < DEADLINE_S
            other.start()
            time.sleep(0.3)  # RECONNECT_PAUSE_S
            assert load(client, keys)[0] == [KeyOutcome.OK] * len(keys)
        finally:
            client.close()


def test_a_store_that_failed_says_so_and_one_lost_half_way_leaves_nothing(valkey: MisbehavingValkey) -> None:
    client = client_of(valkey)
    try:
        valkey.on_any = says(b"-OOM command not allowed\r\n")
        refused = client.store(["k"], [memoryview(value_of("k"))])
        assert refused.wait(DEADLINE_S + SLACK_S)
        assert refused.outcomes == [KeyOutcome.SERVER_ERROR]
        valkey.on_any = says(b"", close=True)
        lost = client.store(["k"], [memoryview(value_of("k"))])
        assert lost.wait(DEADLINE_S + SLACK_S)
        assert lost.outcomes == [KeyOutcome.CONNECTION_LOST]
        valkey.on_any = None
        assert load(client, ["k"])[0] == [KeyOutcome.ABSENT]
    finally:
        client.close()


def test_closing_in_mid_load_settles_everything_at_once(valkey: MisbehavingValkey) -> None:
    valkey.on_get[b"stalled"] = says(b"", after_s=3.0)
    client = client_of(valkey, load_timeout_s=30.0)
    batch = client.load(["stalled", "queued", "behind"], buffers(3))
    time.sleep(0.1)
    began = time.monotonic()
    client.close()
    assert batch.wait(0.1)
    assert time.monotonic() - began < 1.0
    assert set(batch.outcomes) <= {KeyOutcome.CLOSED, KeyOutcome.ABSENT}
    late = client.load(["k"], buffers(1))
    assert late.wait(0.1)
    assert late.outcomes == [KeyOutcome.CLOSED]


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    damage=st.sampled_from(["cut", "flip a header", "none"]),
    where=st.floats(0.0, 1.0),
    keys=st.integers(1, 5),
    value_bytes=st.sampled_from([1, 10, 1_000, 100_000]),
)
def test_whatever_happens_to_the_stream_only_whole_values_are_reported(
    valkey: MisbehavingValkey, damage: str, where: float, keys: int, value_bytes: int
) -> None:
    """The replies of a whole batch as one byte stream, cut or altered anywhere, then the connection closed."""
    names = [f"k{number}" for number in range(keys)]
    values = [random.Random(f"{name}{where}").randbytes(value_bytes) for name in names]
    stream = bytearray(b"".join(bulk(value) for value in values))
    at = int(where * (len(stream) - 1))
    if damage == "cut":
        del stream[at:]
    elif damage == "flip a header":
        starts = [number * len(bulk(values[0])) for number in range(keys)]
        start = starts[int(where * (keys - 1))]
        stream[start + 1] = ord("9") if stream[start + 1] != ord("9") else ord("8")
    sent = bytes(stream)

    def reply(peer: object, _value: bytes | None) -> bool:
        peer.sendall(sent)  # type: ignore[attr-defined]
        return False

    valkey.on_any = reply
    client = client_of(valkey, load_timeout_s=AMPLE_S)
    try:
        into = [memoryview(bytearray([UNTOUCHED]) * value_bytes) for _ in names]
        batch = client.load(names, into)
        assert batch.wait(AMPLE_S + SLACK_S)
        for outcome, buffer in zip(batch.outcomes, into, strict=True):
            # After a reconnect the server begins again with the first value, so any whole value may come.
            if outcome is KeyOutcome.OK:
                assert bytes(buffer) in values
        if damage == "none":
            assert batch.outcomes[0] is KeyOutcome.OK
    finally:
        client.close()
