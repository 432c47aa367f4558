"""Tool calls of a real model: through the gateway, Dynamo's frontend, vLLM prefill and decode, under the engine's grammar.

No schema here has a string that may go on for ever, so that no answer can be cut: a 135M model must be right every time.
"""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import openai
import pytest
from jsonschema import Draft202012Validator

from gateway.toolcalls.served import new_call_id
from prime_inference.toolcalls.choice import read_choice
from prime_inference.toolcalls.declared import declare
from prime_inference.toolcalls.raw import raw_response
from prime_inference.toolcalls.verdict import Verdict, judge
from tests.support.stack import Stack

pytestmark = pytest.mark.e2e

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": -9, "maximum": 9}, "y": {"enum": [1, 2]}},
    "required": ["x", "y"],
}
ROUTE = {
    "type": "object",
    "properties": {
        "start": {"$ref": "#/$defs/point"},
        "mode": {"enum": ["car", "foot"]},
        "at": {"type": "string", "pattern": "^[0-2][0-9]:[0-5][0-9]$"},
        "label": {"type": "string", "minLength": 1, "maxLength": 8},
    },
    "required": ["start", "mode", "at", "label"],
    "$defs": {"point": POINT},
}
PING = {"type": "object", "properties": {"loud": {"type": "boolean"}}, "required": ["loud"]}


def tool(name: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "strict": True, "parameters": parameters}}


TOOLS = [tool("route", ROUTE), tool("ping", PING)]
SCHEMAS = {"route": ROUTE, "ping": PING}
NAMED = {"type": "function", "function": {"name": "route"}}
QUESTION = [{"role": "user", "content": "Plan a way from 1, 2 by car at half past nine."}]


def body(stack: Stack, **fields: Any) -> dict[str, Any]:
    return {"model": stack.model, "messages": QUESTION, "tools": TOOLS, "max_tokens": 250, "temperature": 0.7, **fields}


def whole(stack: Stack, **fields: Any) -> tuple[list[tuple[str, str]], str, str | None]:
    with stack.client(120) as client:
        response = client.post("/chat/completions", json=body(stack, **fields))
    assert response.status_code == 200, response.text
    choice = response.json()["choices"][0]
    calls = choice["message"].get("tool_calls") or []
    assert len({call["id"] for call in calls}) == len(calls)
    return (
        [(call["function"]["name"], call["function"]["arguments"]) for call in calls],
        choice["finish_reason"],
        choice["message"]["content"],
    )


def streamed(stack: Stack, **fields: Any) -> tuple[list[tuple[str, str]], str, str | None]:
    calls: dict[int, list[str]] = {}
    finish, content = "", ""
    for choice in choices_of(stack, **fields):
        content += choice["delta"].get("content") or ""
        finish = choice["finish_reason"] or finish
        for entry in choice["delta"].get("tool_calls") or ():
            call = calls.setdefault(entry["index"], ["", ""])
            call[0] += entry["function"].get("name") or ""
            call[1] += entry["function"].get("arguments") or ""
    assert sorted(calls) == list(range(len(calls)))
    return [(name, arguments) for name, arguments in calls.values()], finish, content or None


def choices_of(stack: Stack, **fields: Any) -> Iterator[dict[str, Any]]:
    with (
        stack.client(120) as client,
        client.stream("POST", "/chat/completions", json=body(stack, stream=True, **fields)) as response,
    ):
        assert response.status_code == 200, response.read()
        for line in response.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield from json.loads(line[6:])["choices"]


@pytest.mark.parametrize(
    ("ask", "choice"),
    [(whole, NAMED), (whole, "required"), (streamed, NAMED), (streamed, "required")],
    ids=["whole-named", "whole-required", "streamed-named", "streamed-required"],
)
def test_a_forced_call_of_a_small_model_fits_its_schema(real_stack: Stack, ask: Any, choice: Any) -> None:
    before = real_stack.metric("gateway", "prime_gateway_tool_calls_total", verdict="Ok")
    for _ in range(3):
        calls, finish, content = ask(real_stack, tool_choice=choice, parallel_tool_calls=False)
        assert (len(calls), finish, content) == (1, "tool_calls", None), calls
        name, arguments = calls[0]
        assert name == "route" or choice == "required"
        Draft202012Validator(SCHEMAS[name]).validate(json.loads(arguments))
    assert real_stack.metric("gateway", "prime_gateway_tool_calls_total", verdict="Ok") == before + 3


def test_under_none_there_is_text_and_no_call(real_stack: Stack) -> None:
    calls, finish, content = whole(real_stack, tool_choice="none", max_tokens=12)
    assert calls == []
    assert finish in ("stop", "length")
    assert content


def test_a_call_that_the_budget_cuts_does_not_leave(real_stack: Stack) -> None:
    for ask in (whole, streamed):
        calls, finish, _ = ask(real_stack, tool_choice=NAMED, max_tokens=12)
        assert (calls, finish) == ([], "length")


def test_an_agents_second_turn_with_a_call_and_its_result_is_served(real_stack: Stack) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "ping", "arguments": '{"loud": true}'}}
    turns = [
        {"role": "user", "content": "Ping."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "pong"},
        {"role": "user", "content": [{"type": "text", "text": "Once more."}]},
    ]
    named = {"type": "function", "function": {"name": "ping"}}
    calls, finish, _ = whole(real_stack, messages=turns, tool_choice=named)
    assert (calls[0][0], finish) == ("ping", "tool_calls")


def test_a_schema_that_means_nothing_is_refused_with_its_place(real_stack: Stack) -> None:
    wrong = tool("lost", {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}})
    with real_stack.client() as client:
        response = client.post("/chat/completions", json=body(real_stack, tools=[wrong]))
    assert response.status_code == 400
    error = response.json()["error"]
    assert "'lost'" in error["message"]
    assert "/properties/a/$ref" in error["message"]
    assert (error["param"], error["code"]) == ("tools", "unsupported_tools")


def is_one_valid_call(raw: dict[str, Any]) -> bool:
    """A raw answer, read by the gateway's own parser and judged by its own judge."""
    declared = declare(TOOLS)
    sent, _ = raw_response(raw, declared, read_choice("required", declared.tools), new_call_id, thinking=False)
    calls = [call["function"] for call in sent["choices"][0]["message"].get("tool_calls") or ()]
    return [judge(call["name"], call["arguments"], declared.tools).verdict for call in calls] == [Verdict.OK]


def test_without_enforcement_the_same_model_is_often_wrong(
    real_stack: Stack, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same request at the frontend, without a grammar. Enforced, none of them is wrong (above)."""
    asked, wrong, cut = 3, 0, 0
    for _ in range(asked):
        fields = body(real_stack)
        fields["tools"] = [{**one, "function": {**one["function"], "strict": False}} for one in TOOLS]
        response = httpx.post(f"{real_stack.running['frontend_url']}/v1/chat/completions", json=fields, timeout=120)
        answer = response.raise_for_status().json()
        wrong += not is_one_valid_call(answer)
        cut += answer["choices"][0]["finish_reason"] == "length"
    with capsys.disabled():
        print(f"\nwithout enforcement {wrong} of {asked} answers are no valid call ({cut} cut); with it 0")
    assert wrong > 0


def test_the_judge_of_raw_answers_knows_a_valid_call() -> None:
    def raw(text: str) -> dict[str, Any]:
        return {"choices": [{"index": 0, "message": {"content": text}, "finish_reason": "stop"}]}

    ping = "<tool_call>ping<arg_key>loud</arg_key><arg_value>true</arg_value></tool_call>"
    assert is_one_valid_call(raw(ping))
    for text in ("Ping!", ping + ping, ping.replace("true", "loud"), ping.replace("ping<", "pong<"), ping[:-9]):
        assert not is_one_valid_call(raw(text)), text


def test_an_agent_that_speaks_responses_gets_valid_calls_and_answers_them(real_stack: Stack) -> None:
    tools = [
        {"type": "function", "strict": True, **{k: one["function"][k] for k in ("name", "parameters")}} for one in TOOLS
    ]
    turns: list[Any] = [{"role": "user", "content": QUESTION[0]["content"]}]
    with openai.OpenAI(base_url=real_stack.url, api_key=real_stack.key, max_retries=0, timeout=120) as client:
        for _ in range(2):
            with client.responses.stream(
                model=real_stack.model, input=turns, tools=tools, tool_choice="required", parallel_tool_calls=False,
                max_output_tokens=250,
            ) as stream:  # fmt: skip
                response = stream.get_final_response()
            assert response.status == "completed"
            (call,) = [item for item in response.output if item.type == "function_call"]
            Draft202012Validator(SCHEMAS[call.name]).validate(json.loads(call.arguments))
            output = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
            turns += [item.to_dict() for item in response.output] + [output]
        whole = client.responses.create(
            model=real_stack.model, input="Ping.", tools=tools, tool_choice={"type": "function", "name": "ping"}
        )
    (call,) = whole.output
    assert call.type == "function_call"
    assert isinstance(json.loads(call.arguments)["loud"], bool)
    assert whole.usage is not None
    assert whole.usage.output_tokens > 0


def test_an_agent_that_speaks_messages_gets_valid_calls_and_answers_them(real_stack: Stack) -> None:
    tools: list[Any] = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
    turns: list[Any] = [{"role": "user", "content": QUESTION[0]["content"]}]
    base_url = real_stack.url.removesuffix("/v1")
    forced: Any = {"type": "any", "disable_parallel_tool_use": True}
    with anthropic.Anthropic(base_url=base_url, api_key=real_stack.key, max_retries=0, timeout=120) as client:
        for _ in range(2):
            with client.messages.stream(
                model=real_stack.model, max_tokens=250, messages=turns, tools=tools, tool_choice=forced
            ) as stream:
                message = stream.get_final_message()
            assert message.stop_reason == "tool_use"
            (block,) = message.content
            assert block.type == "tool_use"
            Draft202012Validator(SCHEMAS[block.name]).validate(block.input)
            result = {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "done"}]}
            turns += [{"role": "assistant", "content": [block.to_dict()]}, {"role": "user", "content": [result]}]
        cut = client.messages.create(
            model=real_stack.model, max_tokens=12, messages=turns[:1], tools=tools, tool_choice={"type": "any"}
        )
    assert (cut.stop_reason, cut.content) == ("max_tokens", [])
