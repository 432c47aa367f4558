"""Verdicts, formats, dialects, choices and tags."""

import json
from typing import Any

import pytest

from prime_inference.toolcalls.choice import Mode, read_choice
from prime_inference.toolcalls.declared import Declared, OnUnsupported, declare
from prime_inference.toolcalls.errors import BadToolChoice, ToolError, UnsupportedTool
from prime_inference.toolcalls.formats import FORMATS
from prime_inference.toolcalls.suite.cases import function
from prime_inference.toolcalls.suite.generate import EVERY, generate
from prime_inference.toolcalls.suite.refused import REFUSED, refused
from prime_inference.toolcalls.tags import Thinking, build_tag, tag_key
from prime_inference.toolcalls.verdict import Verdict, judge


def verdict(parameters: Any, arguments: str, name: str = "t") -> Verdict:
    return judge(name, arguments, declare([function("t", parameters)], OnUnsupported.NAMES_ONLY).tools).verdict


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ('{"city": "Bern"}', Verdict.OK),
        ('{"city": "Bern", "more": 1}', Verdict.OK),
        ("{}", Verdict.SCHEMA_MISMATCH),
        ('{"city": 1}', Verdict.SCHEMA_MISMATCH),
        ("[]", Verdict.SCHEMA_MISMATCH),
        ("", Verdict.INVALID_JSON),
        ('{"city": "Be', Verdict.INVALID_JSON),
        ('{"city": NaN}', Verdict.INVALID_JSON),
        ("[" * 100_000, Verdict.INVALID_JSON),
    ],
)
def test_a_call_gets_its_verdict(arguments: str, wanted: Verdict) -> None:
    assert verdict(CITY, arguments) is wanted


def test_an_undeclared_name_is_its_own_verdict() -> None:
    assert verdict(CITY, '{"city": "x"}', "u") is Verdict.UNKNOWN_NAME


@pytest.mark.parametrize("number", ["1e400", "-1e400", "1" * 390])
def test_a_number_too_large_to_divide_is_a_mismatch(number: str) -> None:
    tools = declare(
        [function("t", {"type": "object", "properties": {"a": {"type": "number", "multipleOf": 0.1}}})]
    ).tools
    assert judge("t", f'{{"a": {number}}}', tools).verdict is Verdict.SCHEMA_MISMATCH


def test_huge_numbers_are_json() -> None:
    number = {"type": "object", "properties": {"n": {"type": "number"}}}
    assert verdict(number, '{"n": 1e400}') is Verdict.OK
    assert verdict(number, '{"n": ' + "9" * 5000 + "}") is Verdict.OK


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer"}, "5.0", "5.5"),
        ({"enum": [1]}, "1.0", "true"),
        ({"prefixItems": [{"type": "integer"}], "items": {"type": "string"}}, '[1, "x"]', "[1, 2]"),
        ({"dependentRequired": {"a": ["b"]}}, '{"a": 1, "b": 2}', '{"a": 1}'),
        ({"type": "string", "format": "date"}, '"2024-02-29"', '"2023-02-29"'),
        ({"type": "string", "format": "unheard-of"}, '"x"', "1"),
        ({"patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False}, '{"xa": 1}', '{"y": 1}'),
        ({"$ref": "#/$defs/S", "minLength": 9}, '"abc"', "1"),
    ],
)
def test_the_counters_reading_of_draft_7_is_ours(schema: Any, right: str, wrong: str) -> None:
    parameters = {"type": "object", "properties": {"v": schema}, "$defs": {"S": {"type": "string"}}}
    assert verdict(parameters, f'{{"v": {right}}}') is Verdict.OK
    assert verdict(parameters, f'{{"v": {wrong}}}') is Verdict.SCHEMA_MISMATCH


@pytest.mark.parametrize("broken", [{"$ref": "#/nowhere"}, {"type": "colour"}, {"pattern": "("}, {"enum": 5}])
def test_a_schema_that_cannot_be_compiled_counts_every_call_as_valid(broken: Any) -> None:
    parameters = {"type": "object", "properties": {"v": broken}}
    tools = declare([function("t", parameters)], OnUnsupported.NAMES_ONLY).tools
    assert judge("t", '{"v": [1]}', tools).counted is Verdict.OK


def test_a_dialects_null_is_right_for_the_client_and_a_mismatch_for_the_counter() -> None:
    tools = declare(
        [function("t", {"type": "object", "properties": {"v": {"type": "string", "nullable": True}}})]
    ).tools
    got = judge("t", '{"v": null}', tools)
    assert (got.verdict, got.counted) == (Verdict.OK, Verdict.SCHEMA_MISMATCH)
    assert judge("t", '{"v": "x"}', tools).counted is Verdict.OK


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("date-time", "2026-11-29T23:59:60Z", "2026-11-29T24:00:00Z"),
        ("time", "10:00:00+02:00", "10:00"),
        ("email", "a.b@c.de", "a..b@c.de"),
        ("hostname", "a-b.example", "-a.example"),
        ("ipv4", "1.2.3.4", "1.2.3.256"),
        ("ipv6", "::1", "1::2::3"),
        ("uri", "https://x/y?z#a", "no scheme"),
        ("uri-reference", "../a", "a b"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567e89b12d3a456426614174000"),
        ("duration", "P1DT2H", "P"),
        ("json-pointer", "/a~1b", "a"),
        ("relative-json-pointer", "1/a", "/a"),
        ("regex", "^a$", "("),
        ("date", "0000-02-29", "2026-02-30"),
    ],
)
def test_a_format_is_what_its_rfc_says(name: str, right: str, wrong: str) -> None:
    assert FORMATS[name](right)
    assert not FORMATS[name](wrong)


def test_every_generated_argument_is_judged_as_it_was_made() -> None:
    """1,000 tools are `slow`'s; a tenth of them shows every construct."""
    seen = set()
    for sample in generate(3 * len(EVERY), 7, EVERY):
        tools = declare([function("t", sample.parameters)]).tools
        for arguments in (*sample.right, *sample.reordered, *sample.extended):
            assert judge("t", json.dumps(arguments), tools).verdict is Verdict.OK, (sample.parameters, arguments)
        for construct, arguments in sample.wrong:
            got = judge("t", json.dumps(arguments), tools)
            assert got.verdict is Verdict.SCHEMA_MISMATCH, (construct, sample.parameters, arguments)
        seen |= set(sample.constructs)
    assert seen == set(EVERY)


# ── the door, without a compiler ─────────────────────────────────────────────────────────────────────────────


def test_an_unsupported_tool_is_refused_by_name_and_place_or_kept_by_name_only() -> None:
    tools = [function("bad", {"type": "object", "properties": {"a": {"$ref": "#/nope"}}}), function("good", CITY)]
    with pytest.raises(UnsupportedTool, match=r"tool 'bad': parameters/properties/a/\$ref") as refusal:
        declare(tools)
    assert refusal.value.status == 400
    declared = declare(tools, OnUnsupported.NAMES_ONLY)
    assert [tool.name for tool in declared.degraded] == ["bad"]
    assert declared.forwarded()[0]["function"]["parameters"] == {"type": "object"}


def test_every_generated_tool_that_means_nothing_is_refused_with_its_name_and_the_place() -> None:
    seen = set()
    for case in refused(10 * len(REFUSED), 7, "t"):
        with pytest.raises(ToolError) as refusal:
            declare([case.entry])
        if case.path is None:
            assert refusal.value.message.startswith("tools[0]: ")
        else:
            assert isinstance(refusal.value, UnsupportedTool)
            assert (refusal.value.tool, refusal.value.path) == ("t", case.path), case.entry
        seen.add(case.construct)
    assert seen == set(REFUSED)


@pytest.mark.parametrize(
    "tools",
    [
        "x",
        ["x"],
        [{"type": "retrieval"}],
        [{"type": ["function"]}],
        [{"type": "function"}],
        [{"type": "function", "function": {}}],
        [function("a b ", CITY)],
        [function("a<tool_call>", CITY)],
        [function("a", CITY), function("a", CITY)],
    ],
)
def test_what_is_no_list_of_function_tools_is_refused(tools: Any) -> None:
    with pytest.raises(ToolError):
        declare(tools)


def declared_two() -> Declared:
    return declare([function("a", CITY), function("b", {"type": "object", "properties": {}})])


@pytest.mark.parametrize(
    ("given", "mode", "allowed"),
    [
        (None, Mode.AUTO, ("a", "b")),
        ("auto", Mode.AUTO, ("a", "b")),
        ("none", Mode.NONE, ()),
        ("required", Mode.REQUIRED, ("a", "b")),
        ({"type": "function", "function": {"name": "b"}}, Mode.NAMED, ("b",)),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [function("a", None)]}},
            Mode.REQUIRED,
            ("a",),
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function("b", None)] * 2}},
            Mode.AUTO,
            ("b",),
        ),
    ],
)
def test_a_tool_choice_is_read(given: Any, mode: Mode, allowed: tuple[str, ...]) -> None:
    choice = read_choice(given, declared_two().tools)
    assert (choice.mode, choice.allowed) == (mode, allowed)


@pytest.mark.parametrize(
    "bad",
    [
        *("any", 5, {}, {"type": "x"}, {"type": ["function"]}, {"type": "function", "name": "a"}),
        {"type": "function", "function": {"name": "c"}},
        {"type": "function", "function": {"name": ["a"]}},
        {"type": "custom", "custom": {"name": "a"}},
        *(
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": one}}
            for one in (5, [], ["a"], [5], {})
        ),
        {"type": "allowed_tools", "allowed_tools": {"mode": ["auto"], "tools": [function("b", None)]}},
    ],
)
def test_a_choice_that_cannot_be_kept_is_refused(bad: Any) -> None:
    with pytest.raises(BadToolChoice):
        read_choice(bad, declared_two().tools)


def test_requiring_one_of_no_tools_is_refused() -> None:
    with pytest.raises(BadToolChoice):
        read_choice("required", {})


def test_a_tag_says_what_the_choice_says() -> None:
    declared = declared_two()

    def tag(choice: Any, **more: Any) -> dict[str, Any]:
        form: dict[str, Any] = build_tag(declared, read_choice(choice, declared.tools), **more)["format"]
        return form

    assert [call["begin"] for call in tag("auto")["tags"]] == ["<tool_call>a", "<tool_call>b"]
    assert (tag("auto")["at_least_one"], tag("required")["at_least_one"]) == (False, True)
    assert tag("auto", parallel=False)["stop_after_first"]
    assert tag("none")["type"] == "any_text"
    assert "<tool_call>" in tag("none")["excludes"]
    assert tag({"type": "function", "function": {"name": "b"}})["begin"] == "<tool_call>b"
    assert tag("auto", thinking=Thinking.IN_TAG)["elements"][0]["end"] == "</think>"
    form = {"type": "json_schema", "json_schema": {"type": "object"}}
    assert tag("auto", text=form) == {"type": "or", "elements": [form, tag("required")]}
    assert tag("required", text=form) == tag("required")


def test_strict_false_frees_the_arguments_and_keeps_the_name() -> None:
    declared = declare([function("a", CITY, strict=False)])
    (call,) = build_tag(declared, read_choice("auto", declared.tools))["format"]["tags"]
    assert call["content"]["json_schema"] == {"type": "object"}


def test_equal_tags_have_equal_keys_and_others_others() -> None:
    declared = declared_two()
    auto, required = (read_choice(word, declared.tools) for word in ("auto", "required"))
    other = declare([function("a", CITY), function("b", {"type": "object", "properties": {"x": {}}})])
    keys = [
        tag_key(declared, auto),
        tag_key(declared, required),
        tag_key(declared, auto, parallel=False),
        tag_key(declared, auto, thinking=Thinking.IN_TAG),
        tag_key(other, auto),
    ]
    assert len(set(keys)) == len(keys)
    assert tag_key(declared_two(), auto) == keys[0]
