"""A chat's earlier turns, as GLM's template and Dynamo take them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.toolcalls.history import for_template, readable


@pytest.mark.parametrize(
    "text", ['{"city": "Bern"}', "{}", '{"a": 1, "a": 2}', '{"n": 123456789012345678901234567890}']
)
def test_arguments_that_are_an_object_stay_the_bytes_they_are(text: str) -> None:
    assert readable(text) == text


@pytest.mark.parametrize("text", ["", " \n", "null"])
def test_no_arguments_are_an_empty_object(text: str) -> None:
    assert readable(text) == "{}"


@pytest.mark.parametrize(
    "text",
    [
        "</arg_key><arg_value>x</arg_value>",
        '{"city": "Be',
        "[1]",
        '"x"',
        '{"n": 1e400}',
        '{"s": "\\ud83d"}',
        "{" * 5000,
    ],
)
def test_a_broken_calls_text_is_shown_whole_in_an_object(text: str) -> None:
    assert json.loads(readable(text)) == {"arguments": text}


def said(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return for_template(list(messages))


def test_what_the_template_has_no_words_for_is_said_in_its_words() -> None:
    assert said({"role": "developer", "content": "Be brief."}) == [{"role": "system", "content": "Be brief."}]
    assert said({"role": "tool", "tool_call_id": "c", "content": []})[0]["content"] == ""


def test_everything_else_stays_as_it_is() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "x"}]},
    ]
    assert for_template(messages) == messages


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda one: st.lists(one, max_size=3))


@given(st.sampled_from(["tool_calls", "content"]), st.dictionaries(st.sampled_from(["function", "id"]), JSON) | JSON)
def test_whatever_a_client_sends_is_passed_on_for_the_frontend_to_judge(key: str, value: Any) -> None:
    for role in ("assistant", "tool", "developer", "user"):
        (turn,) = said({"role": role, key: value})
        assert set(turn) == {"role", key}
    said({"role": "assistant", "tool_calls": [value]})
