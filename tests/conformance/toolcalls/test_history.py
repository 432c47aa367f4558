"""What an agent sends back, as it reaches the model's prompt: through the gateway, the real Dynamo frontend and a chat template
that reads past calls as GLM's does."""

import json
from typing import Any

import pytest

from tests.conformance.toolcalls.conftest import Door, Frontend

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]
CLOSED = {"enable_thinking": False}


async def prompt_of(door: Door, frontend: Frontend, messages: list[dict[str, Any]]) -> str:
    body = {"model": "glm", "messages": messages, "chat_template_kwargs": CLOSED}
    async with door.running.session.post(f"{door.url}/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
    return str(json.loads(frontend.tags_file.read_text().splitlines()[-1])["prompt"])


def called(arguments: str, answer: Any = "12 degrees, <rain> & wind") -> list[dict[str, Any]]:
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": answer},
    ]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (
            '{"city": "Be\\"rn\\n", "n": 5}',
            'city</arg_key><arg_value>Be"rn\n</arg_value><arg_key>n</arg_key><arg_value>5<',
        ),
        ('{"o": {"a": [null, "é"]}}', 'o</arg_key><arg_value>{"a":[null,"é"]}<'),
        ("</arg_key>x", "arguments</arg_key><arg_value></arg_key>x<"),
        ('{"city": "Be', 'arguments</arg_key><arg_value>{"city": "Be<'),
    ],
)
async def test_a_past_call_reaches_the_prompt_whatever_its_arguments_are(
    door: Door, raw_frontend: Frontend, arguments: str, shown: str
) -> None:
    prompt = await prompt_of(door, raw_frontend, called(arguments))
    inside = prompt.partition("<tool_call>weather<arg_key>")[2].partition("</tool_call>")[0]
    assert inside.replace(": ", ":").replace(", ", ",").startswith(shown.replace(": ", ":").replace(", ", ","))
    assert "<tool_response>12 degrees, <rain> & wind</tool_response>" in prompt


@pytest.mark.parametrize("arguments", ["", "null", "{}"])
async def test_a_past_call_without_arguments_is_one_of_the_name_alone(
    door: Door, raw_frontend: Frontend, arguments: str
) -> None:
    assert "<tool_call>weather</tool_call>" in await prompt_of(door, raw_frontend, called(arguments))


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ([{"type": "text", "text": "12"}, {"type": "text", "text": "rain"}], "12\nrain"),
        ([{"type": "text", "text": ""}], ""),
        ([], ""),
        ("", ""),
    ],
)
async def test_a_tools_answer_is_text_in_the_prompt_whatever_it_was_made_of(
    door: Door, raw_frontend: Frontend, answer: Any, shown: str
) -> None:
    prompt = await prompt_of(door, raw_frontend, called("{}", answer))
    assert f"<tool_response>{shown}</tool_response>" in prompt


async def test_a_developers_message_is_not_lost(door: Door, raw_frontend: Frontend) -> None:
    messages = [{"role": "developer", "content": "Answer in French."}, {"role": "user", "content": "Hello"}]
    assert "system\nAnswer in French." in await prompt_of(door, raw_frontend, messages)
