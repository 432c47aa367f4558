"""Whatever bytes stand where a key should: 401, 400 for what is no HTTP any more, 431 for too much of it, and never
anything of ours."""

import socket
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.gateway.test_relay import UNARY
from tests.support.served import served_gateway
from tests.support.upstream import answers

METRIC = "prime_gateway_requests_total"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    with served_gateway(tmp_path_factory.mktemp("auth"), answers(UNARY)) as gw:
        host, port = gw.url.removeprefix("http://").removesuffix("/api/v1").split(":")
        yield host, int(port)
        assert gw.metric(METRIC, endpoint="chat/completions", model="unknown", outcome="internal_error") == 0


def status_of(address: tuple[str, int], name: bytes, value: bytes, path: bytes, method: bytes) -> int:
    body = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}' if method == b"POST" else b""
    head = b"%b /api/v1/%b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n" % (method, path)
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(head + b"content-length: %d\r\n%b: %b\r\n\r\n%b" % (len(body), name, value, body))
        line = connection.makefile("rb").readline()
    return int(line.split()[1])


SCHEMES = st.sampled_from([b"", b"Bearer ", b"bearer  ", b"BEARER\t", b"Basic ", b"Bearer sk-", b"Bearer\xa0"])


@settings(max_examples=300, deadline=None)
@given(
    scheme=SCHEMES,
    value=st.one_of(st.binary(max_size=200), st.text(max_size=100).map(lambda text: text.encode())),
    name=st.sampled_from([b"authorization", b"x-api-key", b"Authorization"]),
    request_of=st.sampled_from([(b"GET", b"models"), (b"POST", b"chat/completions"), (b"POST", b"messages")]),
)
@example(b"Bearer ", b"' OR 1=1; DROP TABLE keys; --", b"authorization", (b"POST", b"chat/completions"))
@example(b"Bearer ", b"\xff\xfe\x00", b"authorization", (b"GET", b"models"))
@example(b"Bearer ", b"\xc3\xa9" * 50, b"x-api-key", (b"GET", b"models"))
@example(b"Bearer ", b"x" * 70_000, b"authorization", (b"POST", b"chat/completions"))
@example(b"", b"a\r\nauthorization: b", b"authorization", (b"GET", b"models"))
@example(b"", b"\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n", b"authorization", (b"GET", b"models"))
def test_no_bytes_in_place_of_a_key_are_let_in_or_break_anything(
    address: tuple[str, int], scheme: bytes, value: bytes, name: bytes, request_of: tuple[bytes, bytes]
) -> None:
    method, path = request_of
    # 431: a head of more than 64 KiB that comes in pieces.
    assert status_of(address, name, scheme + value, path, method) in (400, 401, 431)
