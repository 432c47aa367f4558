"""Tool calls at the gateway's door, in front of scripted deployments. The way of whole calls, with the real compiler and
the real frontend, is tests/conformance/toolcalls."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.fleet.registry import FleetFileError
from tests.support.gateway import gateway
from tests.support.upstream import answers, sends, upstream

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}},
}
CHAT: dict[str, Any] = {"model": "m", "messages": MESSAGES}
CALL = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"n": 1}'}}


def answer(message: dict[str, Any], finish: str) -> bytes:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return json.dumps({"id": "c", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()


@pytest.fixture
def glm(tmp_path: Path) -> dict[str, object]:
    """A model of GLM's form whose tokenizer folder is there and holds nothing."""
    folder = tmp_path / "no tokenizer"
    folder.mkdir()
    return {"format": "glm", "tokenizer": str(folder), "thinking": True}


async def test_an_engine_that_parses_gets_the_tools_unchanged_and_its_calls_are_judged(tmp_path: Path) -> None:
    body = answer({"content": None, "tool_calls": [CALL]}, "tool_calls")
    async with upstream(answers(body)) as deployment, gateway(tmp_path, [deployment.url]) as gw:
        sent = {**CHAT, "tools": [TOOL], "tool_choice": "required"}
        async with gw.session.post(f"{gw.url}/chat/completions", json=sent) as response:
            assert await response.read() == body
        arrived = deployment.requests[0]["body"]
        assert {key: arrived[key] for key in sent} == sent
        assert "guided_grammar" not in arrived
        assert gw.metric("prime_gateway_tool_calls_total", model="m", verdict="Ok") == 1
        assert gw.metric("prime_gateway_tool_answers_total", model="m", outcome="calls_ok") == 1


async def test_an_engine_that_parses_judges_what_it_takes(tmp_path: Path) -> None:
    async with (
        upstream(answers(answer({"content": "x"}, "stop"))) as deployment,
        gateway(tmp_path, [deployment.url]) as gw,
    ):
        for tools in ("no list", [{"type": "web_search"}], [TOOL, TOOL]):
            async with gw.session.post(f"{gw.url}/chat/completions", json={**CHAT, "tools": tools}) as response:
                assert response.status == 200
        assert [request["body"]["tools"] for request in deployment.requests] == [
            "no list",
            [{"type": "web_search"}],
            [TOOL, TOOL],
        ]


async def test_thinking_is_told_from_the_answer_without_any_tools(tmp_path: Path, glm: dict[str, object]) -> None:
    text = "hm, <tool_call>?</think>Hello &amp; welcome."
    async with upstream(answers(answer({"content": text}, "stop"))) as deployment:
        async with gateway(tmp_path, [deployment.url], tools=glm) as gw:
            async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
                message = (await response.json())["choices"][0]["message"]
            assert message["reasoning_content"] == "hm, <tool_call>?"
            assert message["content"] == "Hello &amp; welcome."
            closed = {**CHAT, "chat_template_kwargs": {"enable_thinking": False}}
            async with gw.session.post(f"{gw.url}/chat/completions", json=closed) as response:
                assert (await response.json())["choices"][0]["message"]["content"] == text


async def test_streamed_thinking_leaves_piece_by_piece(tmp_path: Path, glm: dict[str, object]) -> None:
    def chunk(finish: str | None = None, **delta: str) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"

    parts = [
        chunk(role="assistant"),
        chunk(content="a</th"),
        chunk(content="ink>b"),
        chunk("stop"),
        b"data: [DONE]\n\n",
    ]
    async with upstream(sends(*parts)) as deployment, gateway(tmp_path, [deployment.url], tools=glm) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", json={**CHAT, "stream": True}) as response:
            events = [line[6:] for line in (await response.text()).splitlines() if line.startswith("data: ")]
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events[:-1]]
    assert deltas == [{"role": "assistant"}, {"reasoning_content": "a"}, {"content": "b"}, {}]
    assert events[-1] == "[DONE]"


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools", "name"),
        ({"tools": "x"}, "tools", "list"),
        ({"tools": [TOOL], "tool_choice": "perhaps"}, "tool_choice", "perhaps"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "tools", "response_format"),
        (
            {
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "g", "parameters": {"properties": {"a": {"$ref": "#/x"}}}},
                    }
                ]
            },
            "tools",
            "tool 'g': parameters/properties/a/$ref",
        ),
    ],
)
async def test_what_cannot_be_enforced_is_refused_before_it_leaves(
    tmp_path: Path, glm: dict[str, object], fields: dict[str, Any], param: str, said: str
) -> None:
    async with upstream(answers(b"{}")) as deployment, gateway(tmp_path, [deployment.url], tools=glm) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", json={**CHAT, **fields}) as response:
            assert response.status == 400
            error = (await response.json())["error"]
        assert error["param"] == param
        assert said in error["message"]
        assert deployment.requests == []
        assert gw.metric("prime_gateway_tool_requests_refused_total", model="m") == 1


@pytest.mark.slow
async def test_a_compiler_that_does_not_start_delays_nothing_and_costs_only_requests_with_tools(
    tmp_path: Path, glm: dict[str, object]
) -> None:
    started = time.monotonic()
    async with upstream(answers(answer({"content": "a</think>b"}, "stop"))) as deployment:
        async with gateway(tmp_path, [deployment.url], tools=glm) as gw:
            async with gw.session.get(f"{gw.internal_url}/readyz") as response:
                assert response.status == 200
            assert time.monotonic() - started < 2
            async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
                assert response.status == 200
            async with gw.session.post(f"{gw.url}/chat/completions", json={**CHAT, "tools": [TOOL]}) as response:
                assert response.status == 503
                assert (await response.json())["error"]["code"] == "tool_enforcement_unavailable"
                assert response.headers["retry-after"]


async def test_a_gateway_that_cannot_enforce_what_the_fleet_file_says_does_not_start(
    tmp_path: Path, glm: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FleetFileError, match="absent is none"):
        async with gateway(tmp_path, ["http://127.0.0.1:9"], tools={**glm, "tokenizer": str(tmp_path / "absent")}):
            pass
    with pytest.raises(FleetFileError, match="None is none"):
        async with gateway(tmp_path, ["http://127.0.0.1:9"], tools={"format": "glm"}):
            pass
    monkeypatch.setattr("gateway.fleet.registry.find_spec", lambda _: None)
    with pytest.raises(FleetFileError, match="toolcalls"):
        async with gateway(tmp_path, ["http://127.0.0.1:9"], tools=glm):
            pass
    async with gateway(tmp_path, ["http://127.0.0.1:9"]):
        pass
