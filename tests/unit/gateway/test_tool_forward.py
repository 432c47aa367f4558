"""What of a request with tools leaves for the frontend."""

import pytest

from gateway.toolcalls.forward import asks_for_a_format, format_tag, forwarded, thinking_open, with_format
from prime_inference.toolcalls.choice import read_choice

TOOL = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object"}}}
FIELDS = {"model": "m", "messages": [], "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
TOOLS = {"f": object()}


def test_the_grammar_leaves_in_place_of_the_choice_and_the_tools_lose_only_strict() -> None:
    left = forwarded(FIELDS, read_choice("required", TOOLS), "root ::= x")
    assert left["guided_grammar"] == "root ::= x"
    assert left["tool_choice"] == "auto"
    assert left["tools"] == [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    assert FIELDS["tools"] == [TOOL], "the client's request must stay as it is"


def test_none_stays_none() -> None:
    assert forwarded(FIELDS, read_choice("none", TOOLS), "g")["tool_choice"] == "none"


@pytest.mark.parametrize("name", ["response_format", "guided_json", "guided_grammar", "structured_outputs"])
def test_only_one_grammar_leaves_with_a_request(name: str) -> None:
    fields = {**FIELDS, name: {"type": "json_object"}}
    assert asks_for_a_format(fields) == name
    left = forwarded(fields, read_choice("auto", TOOLS), "root ::= x")
    assert left["guided_grammar"] == "root ::= x"
    assert name == "guided_grammar" or name not in left


def test_text_is_no_format() -> None:
    assert asks_for_a_format({**FIELDS, "response_format": {"type": "text"}}) is None


def test_a_format_under_none_takes_the_grammars_place() -> None:
    fields = {**FIELDS, "response_format": {"type": "json_object"}}
    assert "guided_grammar" not in forwarded(fields, read_choice("none", TOOLS), None)


@pytest.mark.parametrize("name", ["chat_template_kwargs", "chat_template_args"])
def test_a_request_closes_the_thinking_as_the_template_reads_it(name: str) -> None:
    assert thinking_open({}, thinks=True)
    assert not thinking_open({}, thinks=False)
    assert not thinking_open({name: {"enable_thinking": False}}, thinks=True)
    assert thinking_open({name: {"enable_thinking": True}}, thinks=True)


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("asked", "content"),
    [
        ({"response_format": {"type": "json_object"}}, {"type": "json_schema", "json_schema": {"type": "object"}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
            {"type": "json_schema", "json_schema": SCHEMA},
        ),
        ({"guided_json": '{"type": "object"}'}, {"type": "json_schema", "json_schema": {"type": "object"}}),
        ({"guided_regex": "a+"}, {"type": "regex", "pattern": "a+"}),
        ({"guided_choice": ["a"]}, {"type": "or", "elements": [{"type": "const_string", "value": "a"}]}),
        ({"guided_grammar": "root ::= x"}, {"type": "grammar", "grammar": "root ::= x"}),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "strange"}}, None),
        ({}, None),
    ],
)
def test_a_format_is_said_as_a_tag_so_that_it_can_begin_behind_the_thinking(asked: dict, content: dict | None) -> None:  # type: ignore[type-arg]
    assert format_tag({"model": "m", **asked}) == content
    assert with_format({"model": "m", **asked}, "g") == {"model": "m", "guided_grammar": "g"}
