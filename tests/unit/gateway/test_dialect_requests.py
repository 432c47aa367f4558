"""What an agent sends in OpenAI's Responses and in Anthropic's Messages, as the chat request that leaves."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.messages_request import asked_in_messages
from gateway.dialects.responses_request import CUSTOM_PARAMETERS, asked_in_responses
from gateway.errors import InvalidRequest

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


def in_responses(**fields: Any) -> dict[str, Any]:
    return asked_in_responses({"model": "m", "input": "hi", **fields})[0].fields


def in_messages(**fields: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": "hi"}]
    return asked_in_messages({"model": "m", "max_tokens": 9, "messages": turns, **fields}).fields


def test_an_agents_second_turn_in_responses_is_one_assistant_message_with_its_calls() -> None:
    items = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be brief"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"n": 1}'},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": 'say "x"\n'},
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
    ]
    messages = in_responses(instructions="you are f", input=items)["messages"]
    assert messages[:3] == [
        {"role": "system", "content": "you are f"},
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb"},
    ]
    assert [message["role"] for message in messages[3:]] == ["assistant", "tool", "tool"]
    said = messages[3]
    assert (said["content"], said["reasoning_content"]) == ("I look.", "hm")
    assert [call["id"] for call in said["tool_calls"]] == ["c1", "c2"]
    assert json.loads(said["tool_calls"][1]["function"]["arguments"]) == {"input": 'say "x"\n'}
    assert [(m["tool_call_id"], m["content"]) for m in messages[4:]] == [("c1", "one"), ("c2", "two")]


def test_an_agents_second_turn_in_messages_is_the_same_chat() -> None:
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"n": 1}},
                {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "one"}]},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "two", "is_error": True},
                {"type": "text", "text": "go on"},
            ],
        },
    ]
    system = [
        {"type": "text", "text": "you are", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "f"},
    ]
    messages = in_messages(system=system, messages=turns)["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert messages[0]["content"] == "you are\nf"
    said = messages[2]
    assert (said["content"], said["reasoning_content"]) == ("I look.", "hm")
    assert [(c["id"], json.loads(c["function"]["arguments"])) for c in said["tool_calls"]] == [
        ("toolu_1", {"n": 1}),
        ("toolu_2", {}),
    ]
    assert [(m["tool_call_id"], m["content"]) for m in messages[3:5]] == [("toolu_1", "one"), ("toolu_2", "two")]
    assert messages[5]["content"] == "go on"


def test_images_that_a_tool_gave_follow_its_answer() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "seen"}, picture]}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
    messages = in_messages(messages=[call, {"role": "user", "content": [result]}])["messages"]
    assert [message["role"] for message in messages] == ["assistant", "tool", "user"]
    assert messages[1]["content"] == "seen"
    assert messages[2]["content"][0]["image_url"]["url"] == "data:image/png;base64,AA=="


def test_tools_and_choices_of_responses_are_carried_over() -> None:
    tools = [
        {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": True},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"}},
        {"type": "namespace", "name": "mcp__git", "description": "", "tools": [{"type": "function", "name": "log"}]},
        {"type": "web_search"},
    ]
    asked, names = asked_in_responses({"model": "m", "input": "hi", "tools": tools})
    functions = [tool["function"] for tool in asked.fields["tools"]]
    assert functions[0] == {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
    assert functions[1]["parameters"] == CUSTOM_PARAMETERS
    assert "start: X" in functions[1]["description"]
    assert functions[2]["name"] == "mcp__git__log"
    assert (asked.left_out, names.custom, names.spaces) == (1, {"patch"}, {"mcp__git__log": ("mcp__git", "log")})
    named = {"type": "function", "function": {"name": "f"}}
    assert in_responses(tool_choice={"type": "function", "name": "f"})["tool_choice"] == named
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]}
    assert in_responses(tool_choice=allowed)["tool_choice"] == {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [named]},
    }


def test_tools_and_choices_of_messages_are_carried_over() -> None:
    tools = [
        {"name": "f", "description": "d", "input_schema": SCHEMA},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    fields = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": tools}
    asked = asked_in_messages(fields)
    assert asked.left_out == 1
    assert asked.fields["tools"] == [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
    ]
    for theirs, ours in (("auto", "auto"), ("any", "required"), ("none", "none")):
        assert in_messages(tool_choice={"type": theirs})["tool_choice"] == ours
    one = in_messages(tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True})
    assert (one["tool_choice"]["function"]["name"], one["parallel_tool_calls"]) == ("f", False)


def test_budgets_stops_formats_and_thinking_are_carried_over() -> None:
    fields = in_responses(
        max_output_tokens=7,
        temperature=0.5,
        reasoning={"effort": "none"},
        text={"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}},
    )
    assert (fields["max_tokens"], fields["temperature"]) == (7, 0.5)
    assert fields["chat_template_kwargs"] == {"enable_thinking": False}
    assert fields["response_format"]["json_schema"] == {"name": "n", "schema": SCHEMA, "strict": True}
    assert "response_format" not in in_responses(text={"format": {"type": "text"}})
    fields = in_messages(
        stop_sequences=["x"],
        top_k=3,
        thinking={"type": "enabled", "budget_tokens": 1024},
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    )
    assert (fields["max_tokens"], fields["stop"], fields["top_k"]) == (9, ["x"], 3)
    assert fields["chat_template_kwargs"] == {"enable_thinking": True}
    assert fields["response_format"]["json_schema"]["schema"] == SCHEMA
    assert in_messages(thinking={"type": "disabled"})["chat_template_kwargs"] == {"enable_thinking": False}
    assert "chat_template_kwargs" not in in_messages()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        ({"input": ["x"]}, "input[0]"),
        ({"tools": "x"}, "tools"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice"),
    ],
)
def test_what_responses_cannot_be_carried_over_is_refused_with_its_place(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        in_responses(**fields)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "{"}]}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "search_result"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"tool_choice": {"type": "perhaps"}}, "tool_choice"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": {"type": ["auto"]}}, "tool_choice"),
        ({"system": [{"type": "text"}]}, "system[0].text"),
    ],
)
def test_what_messages_cannot_be_carried_over_is_refused_with_its_place(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        in_messages(**fields)
    assert refused.value.param == param


WORDS = st.sampled_from(
    ["type", "role", "content", "text", "user", "assistant", "message", "function_call", "tool_use", "tool_result", "name",
     "input", "output", "id", "call_id", "arguments", "thinking", "reasoning", "function", "custom", "namespace", "tools",
     "source", "image", "input_text", "format", "json_schema", "tool", "any", "summary", "namespace", "system", "effort"]
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=20,
)
FIELDS = st.sampled_from(
    ["tools", "tool_choice", "instructions", "reasoning", "text", "system", "thinking", "output_config", "stop_sequences",
     "chat_template_kwargs", "parallel_tool_calls", "max_output_tokens"]
)  # fmt: skip
TURNS = st.lists(st.dictionaries(WORDS, JSON, max_size=6), min_size=1, max_size=3)


@given(st.dictionaries(FIELDS, JSON, max_size=5), TURNS)
def test_any_request_is_carried_over_or_refused(fields: dict[str, Any], turns: list[dict[str, Any]]) -> None:
    messages = [{**turn, "role": turn.get("role") if isinstance(turn.get("role"), str) else "user"} for turn in turns]
    for ask, prompt in ((in_responses, {"input": turns}), (in_messages, {"messages": messages})):
        with suppress(InvalidRequest):
            json.dumps(ask(**fields, **prompt))
