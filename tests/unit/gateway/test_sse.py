from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.relay.sse import EventSplitter, EventTooLarge, data_of, event_of, field_of

LINE_ENDS = (b"\n", b"\r", b"\r\n")
line_ends = st.sampled_from(LINE_ENDS)
texts = st.text(alphabet=st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), min_size=1, max_size=12)


def split(parts: list[bytes]) -> list[bytes]:
    splitter = EventSplitter(1_000_000)
    events = [event for part in parts for event in splitter.feed(part)]
    rest = splitter.rest()
    return [*events, rest] if rest else events


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A byte stream of events and the data of each."""
    stream, datas = b"", []
    for text in draw(st.lists(texts, min_size=1, max_size=5)):
        space = draw(st.sampled_from([b"", b" "]))
        # A leading space would be taken as the optional one after the colon.
        data = text.encode().lstrip(b" ") or b"x"
        stream += b"data:" + space + data + draw(line_ends) + draw(line_ends)
        datas.append(data)
    return stream, datas


@given(streams(), st.data())
def test_any_cut_of_any_stream_gives_the_same_bytes_and_the_same_data(
    stream: tuple[bytes, list[bytes]], data: st.DataObject
) -> None:
    whole, datas = stream
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    edges = [0, *cuts, len(whole)]
    events = split([whole[a:b] for a, b in pairwise(edges)])
    assert b"".join(events) == whole
    assert [found for event in events if (found := data_of(event)) is not None] == merged(whole, datas)


def merged(whole: bytes, datas: list[bytes]) -> list[bytes]:
    """CR followed by LF is one line end: two events may then be one, exactly as for one uncut read."""
    return [found for event in split([whole]) if (found := data_of(event)) is not None] if b"\r" in whole else datas


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n", b"\r\n\n"])
def test_every_offset_of_a_multi_byte_character_can_be_a_cut(end: bytes) -> None:
    stream = 'data: {"content":"héllo ✓ 🦀"}'.encode() + end + b"data: [DONE]" + end
    for cut in range(len(stream) + 1):
        events = split([stream[:cut], stream[cut:]])
        assert b"".join(events) == stream
        assert [data_of(event) for event in events] == ['{"content":"héllo ✓ 🦀"}'.encode(), b"[DONE]"]


def test_a_crlf_cut_in_the_middle_is_not_an_empty_line() -> None:
    assert split([b"data: a\r", b"\ndata: b\r\n\r\n"]) == [b"data: a\r\ndata: b\r\n\r\n"]


def test_data_lines_of_one_event_are_joined() -> None:
    assert data_of(b"event: x\ndata: a\ndata:b\n\n") == b"a\nb"


def test_a_comment_has_no_data_and_its_text_can_be_read() -> None:
    assert data_of(b": ping\n\n") is None
    assert field_of(b"event: error\n: worker lost\n\n", b"") == b"worker lost"
    assert field_of(b"event: error\n: worker lost\n\n", b"event") == b"error"


def test_a_ten_megabyte_line_passes() -> None:
    event = event_of(b"x" * 10_000_000)
    splitter = EventSplitter(16_000_000)
    found = [e for start in range(0, len(event), 65_536) for e in splitter.feed(event[start : start + 65_536])]
    assert found == [event]


def test_an_endless_event_is_refused() -> None:
    splitter = EventSplitter(100)
    with pytest.raises(EventTooLarge):
        splitter.feed(b"data: " + b"x" * 200)
