"""Tool calls at the gateway's door, in front of scripted deployments. The way of whole calls, with the real compiler and
the real frontend, is tests/conformance/toolcalls."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.fleet.registry import FleetFileError
from tests.support.gateway import gateway
from tests.support.upstream import answers, breaks, sends, upstream

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
        ({"tool_choice": "required"}, "tool_choice", "needs at least one tool"),
        ({"tools": [], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "'f'"),
        ({"tools": [TOOL], "structured_outputs": {"regex": "x"}}, "structured_outputs", "together with tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "tools", "'custom'"),
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


DIALECTS: dict[str, dict[str, Any]] = {
    "responses": {"model": "m", "instructions": "be", "input": "hi", "max_output_tokens": 9},
    "messages": {"model": "m", "system": "be", "messages": MESSAGES, "max_tokens": 9},
}


def texts_in(path: str, body: dict[str, Any]) -> dict[str, str]:
    parts = body["content"] if path == "messages" else [p for item in body["output"] for p in item["content"]]
    kinds = {"thinking": "thinking", "reasoning_text": "thinking", "text": "text", "output_text": "text"}
    return {kinds[part["type"]]: part.get("text") or part["thinking"] for part in parts}


@pytest.mark.parametrize("path", DIALECTS)
async def test_the_other_dialects_leave_as_chat_and_come_back_in_their_own_words(
    tmp_path: Path, glm: dict[str, object], path: str
) -> None:
    deployed = upstream(answers(answer({"content": "hm</think>Hello &amp; welcome."}, "stop")))
    async with deployed as deployment, gateway(tmp_path, [deployment.url], tools=glm) as gw:
        async with gw.session.post(f"{gw.url}/{path}", json=DIALECTS[path]) as response:
            assert response.status == 200
            said = texts_in(path, await response.json())
        assert said == {"thinking": "hm", "text": "Hello &amp; welcome."}
        arrived = deployment.requests[0]["body"]
        assert [message["role"] for message in arrived["messages"]] == ["system", "user"]
        assert arrived["max_tokens"] == 9
        assert gw.metric("prime_gateway_tokens_total", model="m", kind="completion") == 1


@pytest.mark.parametrize("path", DIALECTS)
async def test_the_other_dialects_stream_and_fail_over_and_say_errors_in_their_own_words(
    tmp_path: Path, glm: dict[str, object], path: str
) -> None:
    first = {"id": "c", "choices": [{"index": 0, "delta": {"content": "a</think>b"}, "finish_reason": None}]}
    part = b"data: " + json.dumps(first).encode() + b"\n\n"
    async with upstream(breaks()) as bad, upstream(breaks(part)) as good:
        async with gateway(tmp_path, [bad.url, good.url], tools=glm) as gw:
            async with gw.session.post(f"{gw.url}/{path}", json={**DIALECTS[path], "stream": True}) as response:
                body = (await response.text()).split("\n\n")
        assert len(bad.requests) == len(good.requests) == 1
    kinds = [one.split("\n")[0].removeprefix("event: ") for one in body if one.startswith("event: ")]
    assert kinds[0] in ("response.created", "message_start")
    assert kinds[-1] == "error"
    assert kinds.count("error") == 1
    assert not any("[DONE]" in one for one in body)


@pytest.mark.parametrize("path", DIALECTS)
async def test_what_cannot_be_enforced_is_refused_in_every_dialect(
    tmp_path: Path, glm: dict[str, object], path: str
) -> None:
    wrong = {"properties": {"a": {"$ref": "#/x"}}}
    tool = {"name": "g", "input_schema": wrong} if path == "messages" else {"type": "function", "name": "g"}
    tool = tool if path == "messages" else {**tool, "parameters": wrong}
    async with upstream(answers(b"{}")) as deployment, gateway(tmp_path, [deployment.url], tools=glm) as gw:
        async with gw.session.post(f"{gw.url}/{path}", json={**DIALECTS[path], "tools": [tool]}) as response:
            assert response.status == 400
            assert "tool 'g': parameters/properties/a/$ref" in (await response.json())["error"]["message"]
        hosted = [{"type": "web_search_20250305", "name": "web_search"}]
        async with gw.session.post(f"{gw.url}/{path}", json={**DIALECTS[path], "tools": hosted}) as response:
            assert response.status != 400
        assert "tools" not in deployment.requests[0]["body"]
        assert gw.metric("prime_gateway_tools_not_held_total", model="m", how="left_out") == 1
