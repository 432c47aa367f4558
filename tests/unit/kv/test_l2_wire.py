import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.kv.l2.wire import (
    LARGEST_VALUE_BYTES,
    MalformedReply,
    ReplyHeader,
    ReplyKind,
    command,
    parse_header,
    store_head,
)


def parse_command(raw: bytes) -> list[bytes]:
    count, rest = raw[1:].split(b"\r\n", 1)
    parts = []
    for _ in range(int(count)):
        length, rest = rest[1:].split(b"\r\n", 1)
        parts.append(rest[: int(length)])
        assert rest[int(length) :][:2] == b"\r\n"
        rest = rest[int(length) + 2 :]
    assert rest == b""
    return parts


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=5))
def test_a_command_reads_back_whatever_bytes_its_parts_hold(parts: list[bytes]) -> None:
    assert parse_command(command(*parts)) == parts


@given(st.binary(max_size=50), st.binary(max_size=200))
def test_a_store_is_its_head_the_value_and_a_terminator(key: bytes, value: bytes) -> None:
    assert parse_command(store_head(key, len(value)) + value + b"\r\n") == [b"SET", key, value]


@pytest.mark.parametrize(
    ("line", "header"),
    [
        (b"+OK", ReplyHeader(ReplyKind.STATUS, text=b"OK")),
        (b"-ERR no", ReplyHeader(ReplyKind.ERROR, text=b"ERR no")),
        (b":0", ReplyHeader(ReplyKind.INTEGER, number=0)),
        (b":-3", ReplyHeader(ReplyKind.INTEGER, number=-3)),
        (b"$0", ReplyHeader(ReplyKind.VALUE, number=0)),
        (b"$12392448", ReplyHeader(ReplyKind.VALUE, number=12_392_448)),
        (b"$-1", ReplyHeader(ReplyKind.NO_VALUE)),
    ],
)
def test_a_reply_header_is_read(line: bytes, header: ReplyHeader) -> None:
    assert parse_header(line) == header


@pytest.mark.parametrize(
    "line",
    [b"", b"$", b"$-2", b"$--1", b"$ 1", b"$1_0", b"$+1", b"$1.0", b":", b"*1", b"_", b"OK", b"$%d" % (2**40)],
)
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(MalformedReply):
        parse_header(line)


@given(st.binary(max_size=30))
def test_no_bytes_make_the_parser_fail_otherwise_or_promise_a_value_out_of_range(line: bytes) -> None:
    try:
        header = parse_header(line)
    except MalformedReply:
        return
    assert header.kind is not ReplyKind.VALUE or 0 <= header.number <= LARGEST_VALUE_BYTES
