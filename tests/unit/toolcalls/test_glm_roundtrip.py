"""The wire codec: any name, any arguments that fit, any way of cutting the text."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.toolcalls.declared import Tool, declare
from prime_inference.toolcalls.errors import Unspellable
from prime_inference.toolcalls.glm import MARKERS, Broken, Call, Decoder, Event, Form, Text, encode
from prime_inference.toolcalls.strict_json import parse, spell
from prime_inference.toolcalls.suite.cases import function

PARAMETERS = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "maybe": {"type": ["string", "null"]},
        "number": {"type": "number"},
        "either": {"type": ["string", "integer", "boolean"]},
        "anything": {},
        "list": {"type": "array", "items": {"type": "string"}},
        "object": {"$ref": "#/$defs/O"},
    },
    "$defs": {"O": {"type": "object", "additionalProperties": {"type": "string"}}},
}
characters = st.characters(exclude_categories=["Cs"])
pieces = st.sampled_from(
    [*MARKERS, "<", "</", "</arg_val", "<tool", "null", "true", "7", '"', '"x"', "\n", " ", "&lt;"]
)
texts = st.lists(st.one_of(pieces, st.text(characters, max_size=6)), max_size=6).map("".join)
numbers = st.one_of(st.integers(-(10**20), 10**20), st.floats(allow_nan=False, allow_infinity=False))
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
arguments_of_the_tool = st.fixed_dictionaries(
    {},
    optional={
        "text": texts,
        "maybe": st.one_of(st.none(), texts),
        "number": numbers,
        "either": st.one_of(st.booleans(), st.integers(), texts),
        "anything": json_values,
        "list": st.lists(texts, max_size=3),
        "object": st.dictionaries(texts, texts, max_size=3),
    },
)
names = st.text(characters, min_size=1, max_size=20).filter(
    lambda name: name == name.strip() and not any(marker in name for marker in MARKERS)
)


def tool_named(name: str) -> Tool:
    return declare([function(name, PARAMETERS)]).tools[name]


def decoded(text: str, tools: dict[str, Tool], cuts: list[int]) -> list[Event]:
    decoder = Decoder(tools)
    events: list[Event] = []
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    start = 0
    for end in ends:
        events += decoder.feed(text[start:end])
        start = end
    return joined([*events, *decoder.finish(natural=True)])


def joined(events: list[Event]) -> list[Event]:
    """Neighbouring texts put together: how text is cut up is not part of what was said."""
    result: list[Event] = []
    for event in events:
        if isinstance(event, Text) and result and isinstance(result[-1], Text):
            result[-1] = Text(result[-1].text + event.text)
        else:
            result.append(event)
    return result


@settings(max_examples=120, deadline=None)
@given(names, arguments_of_the_tool, st.sampled_from(Form), st.lists(st.integers(0, 200), max_size=12))
def test_what_is_encoded_is_decoded_to_the_same_whatever_the_cuts(
    name: str, arguments: dict[str, Any], form: Form, cuts: list[int]
) -> None:
    tool = tool_named(name)
    try:
        text = encode(name, arguments, tool, form)
    except Unspellable:
        assert may_be_unspellable(name, arguments)
        return
    (event,) = decoded(text, {name: tool}, cuts)
    assert isinstance(event, Call)
    assert event.name == name
    assert spell(parse(event.arguments)) == spell(arguments)


def may_be_unspellable(name: str, arguments: dict[str, Any]) -> bool:
    """Text that holds the end of a value and what follows one has no spelling, nor a name that ends in white space."""
    raw = [value for key, value in arguments.items() if isinstance(value, str)]
    return any("</arg_value>" in value for value in raw) or name != name.rstrip(" \t\r\n")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(pieces, texts), max_size=8).map("".join), st.lists(st.integers(0, 120), max_size=10))
def test_any_text_is_decoded_alike_in_one_piece_and_in_many(text: str, cuts: list[int]) -> None:
    tools = {"w": tool_named("w")}
    assert decoded(text, tools, cuts) == decoded(text, tools, [])


@settings(max_examples=60, deadline=None)
@given(st.text(characters).filter(lambda text: "<" not in text))
def test_text_without_a_marker_comes_out_as_it_went_in(text: str) -> None:
    assert "".join(event.text for event in decoded(text, {}, [1, 3, 7]) if isinstance(event, Text)) == text


@given(st.integers(0, 80))
@settings(max_examples=81, deadline=None)
def test_a_call_cut_anywhere_never_comes_out_in_part(length: int) -> None:
    tool = tool_named("w")
    text = encode("w", {"text": "x", "number": 5}, tool)
    decoder = Decoder({"w": tool})
    events = [*decoder.feed(text[: min(length, len(text) - 1)]), *decoder.finish(natural=False)]
    assert not any(isinstance(event, Call) for event in events)


@pytest.mark.parametrize(
    ("value", "spelling"),
    [("null", '"null"'), ('"null"', '"\\"null\\""'), ('"x"', '"x"'), ("null ", '"null "'), (None, "null"), ("x", "x")],
)
def test_a_string_that_would_read_as_null_is_quoted_and_no_other(value: str | None, spelling: str) -> None:
    text = encode("w", {"maybe": value}, tool_named("w"))
    assert f"<arg_value>{spelling}</arg_value>" in text


def test_a_value_ends_only_where_a_key_or_the_end_of_the_call_follows() -> None:
    tool = tool_named("w")
    text = encode("w", {"text": "a</arg_value> b</tool_call><arg_key>c"}, tool)
    assert decoded(text, {"w": tool}, []) == [Call("w", json.dumps({"text": "a</arg_value> b</tool_call><arg_key>c"}))]
    with pytest.raises(Unspellable):
        encode("w", {"text": "a</arg_value> <arg_key>b"}, tool)


@settings(max_examples=150, deadline=None)
@given(st.lists(texts, min_size=1, max_size=3), texts, st.booleans(), st.lists(st.integers(0, 200), max_size=12))
def test_a_marker_inside_a_json_string_is_data_although_nothing_escapes_it(
    strings: list[str], key: str, whole: bool, cuts: list[int]
) -> None:
    values = {"list": json.dumps(strings, ensure_ascii=False), "object": json.dumps({key: strings[0]})}
    pairs = "".join(f"<arg_key>{name}</arg_key><arg_value>{value}</arg_value>" for name, value in values.items())
    (call, *after) = decoded(f"<tool_call>w{pairs}</tool_call>done", {"w": tool_named("w")}, [] if whole else cuts)
    assert isinstance(call, Call)
    assert parse(call.arguments) == {"list": strings, "object": {key: strings[0]}}
    assert after == [Text("done")]


@given(st.lists(st.integers(0, 200), max_size=12))
def test_what_is_no_json_ends_where_it_first_could_have(cuts: list[int]) -> None:
    text = "".join(
        f'<tool_call>w<arg_key>list</arg_key><arg_value>["a{n}]</arg_value><arg_key>number</arg_key>'
        f"<arg_value>{n}</arg_value></tool_call>"
        for n in range(2)
    )
    wanted: list[Event] = [Call("w", json.dumps({"list": f'["a{n}]', "number": n})) for n in range(2)]
    assert decoded(f"{text}\n", {"w": tool_named("w")}, cuts) == wanted


def test_a_json_string_that_the_budget_cut_takes_no_call_for_its_own() -> None:
    decoder = Decoder({"w": tool_named("w")})
    assert decoder.feed('<tool_call>w<arg_key>list</arg_key><arg_value>["a</arg_value></tool_call> b') == []
    (cut,) = decoder.finish(natural=False)
    assert isinstance(cut, Broken)
    assert cut.unfinished


def test_what_breaks_the_form_is_broken_and_what_follows_is_still_read() -> None:
    text = "<tool_call>w<arg_key>a</arg_key>oops<arg_value>1</arg_value></tool_call>and<tool_call>w</tool_call>"
    body = "<arg_key>a</arg_key>oops<arg_value>1</arg_value>"
    assert decoded(text, {"w": tool_named("w")}, []) == [Broken("w", body, False), Text("and"), Call("w", "{}")]


def test_markers_outside_a_call_are_counted() -> None:
    decoder = Decoder({})
    assert joined(decoder.feed("a</tool_call>b<arg_key>")) == [Text("a</tool_call>b<arg_key>")]
    assert decoder.stray_markers == 2


def test_a_long_value_in_small_pieces_takes_time_in_proportion() -> None:
    tool = tool_named("w")
    decoder = Decoder({"w": tool})
    decoder.feed("<tool_call>w<arg_key>text</arg_key><arg_value>")
    for _ in range(50_000):
        assert decoder.feed("abcdef") == []
    (call,) = decoder.feed("</arg_value></tool_call>")
    assert isinstance(call, Call)
    assert len(call.arguments) == 50_000 * 6 + len('{"text": ""}')
