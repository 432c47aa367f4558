"""`/responses` and `/messages`: the same gates and failover, the dialects' own events and errors, read by their SDKs."""

import asyncio
import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.support.gateway import KEY, gateway
from tests.support.upstream import answers, breaks, sends, upstream


def typed(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def response(status: str = "completed", **more: Any) -> dict[str, Any]:
    return {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": status, "output": [],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], **more,
    }  # fmt: skip


R_USAGE = {
    "input_tokens": 7, "output_tokens": 2, "total_tokens": 9, "input_tokens_details": {"cached_tokens": 3},
    "output_tokens_details": {"reasoning_tokens": 0},
}  # fmt: skip
RESPONSE_STREAM = [
    typed("response.created", response=response("in_progress"), sequence_number=0),
    typed(
        "response.output_text.delta",
        delta='a "usage" é',
        item_id="i",
        output_index=0,
        content_index=0,
        logprobs=[],
        sequence_number=1,
    ),
    typed("response.completed", response=response(usage=R_USAGE), sequence_number=2),
]
MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "stop_reason": None}
M_USAGE = {"input_tokens": 4, "cache_read_input_tokens": 3, "output_tokens": 0}
MESSAGE_STREAM = [
    typed("message_start", message={**MESSAGE, "usage": M_USAGE}),
    typed("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    typed("content_block_delta", index=0, delta={"type": "text_delta", "text": "hi"}),
    typed("content_block_stop", index=0),
    typed("message_delta", delta={"stop_reason": "end_turn", "stop_sequence": None}, usage={"output_tokens": 2}),
    typed("message_stop"),
]
BODIES: dict[str, dict[str, Any]] = {
    "responses": {"model": "m", "input": "hi", "stream": True},
    "messages": {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "stream": True},
}
STREAMS = {"responses": RESPONSE_STREAM, "messages": MESSAGE_STREAM}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_a_typed_stream_reaches_the_client_byte_for_byte_and_is_metered(
    tmp_path: Path, path: str, size: int
) -> None:
    whole = b"".join(STREAMS[path])
    parts = [whole[start : start + size] for start in range(0, len(whole), size)]
    async with upstream(sends(*parts)) as up, gateway(tmp_path, [up.url]) as gw:
        async with gw.session.post(f"{gw.url}/{path}", json=BODIES[path]) as answer:
            assert await answer.read() == whole
        for kind, count in (("prompt", 7), ("cached", 3), ("completion", 2)):
            assert gw.metric("prime_gateway_tokens_total", model="m", kind=kind) == count
        assert "nvext" not in up.requests[0]["body"]


@pytest.mark.parametrize("path", BODIES)
async def test_a_deployment_that_fails_behind_its_preamble_is_left_for_another(tmp_path: Path, path: str) -> None:
    stream = STREAMS[path]
    async with upstream(breaks(stream[0])) as bad, upstream(sends(*stream)) as good:
        async with gateway(tmp_path, [bad.url, good.url]) as gw:
            async with gw.session.post(f"{gw.url}/{path}", json=BODIES[path]) as answer:
                assert await answer.read() == b"".join(stream)
        assert len(bad.requests) == 1


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("cut", [breaks, sends])
async def test_a_typed_stream_that_just_ends_gets_an_error_event(tmp_path: Path, path: str, cut: Any) -> None:
    stream = STREAMS[path][:2]
    async with upstream(cut(*stream)) as up, gateway(tmp_path, [up.url]) as gw:
        async with gw.session.post(f"{gw.url}/{path}", json=BODIES[path]) as answer:
            body = await answer.read()
    assert body.startswith(b"".join(stream))
    assert body.count(b"event: error\n") == 1
    assert json.loads(body.rsplit(b"data: ", 1)[1])["type"] == "error"


async def test_the_sdks_read_streams_answers_and_errors(tmp_path: Path) -> None:
    async with upstream(sends(*RESPONSE_STREAM)) as up, gateway(tmp_path, [up.url]) as gw:
        async with openai.AsyncOpenAI(base_url=gw.url, api_key=KEY, max_retries=0) as client:
            events = [event async for event in await client.responses.create(model="m", input="hi", stream=True)]
            assert [event.type for event in events][-1] == "response.completed"
            with pytest.raises(openai.BadRequestError, match="not kept"):
                await client.responses.create(model="m", input="hi", previous_response_id="resp_0")
    async with upstream(sends(*MESSAGE_STREAM)) as up, gateway(tmp_path, [up.url]) as gw:
        base_url = gw.url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(base_url=base_url, api_key=KEY, max_retries=0) as claude:
            ask: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
            async with claude.messages.stream(**ask) as stream:
                assert (await stream.get_final_message()).usage.output_tokens == 2
            with pytest.raises(anthropic.NotFoundError):
                await claude.messages.create(**{**ask, "model": "other"})
        async with anthropic.AsyncAnthropic(base_url=base_url, api_key="sk-wrong", max_retries=0) as stranger:
            with pytest.raises(anthropic.AuthenticationError):
                await stranger.messages.create(**ask)


UNARY = {
    "responses": response(usage=R_USAGE),
    "messages": {**MESSAGE, "usage": {**M_USAGE, "output_tokens": 2}},
}


@pytest.mark.parametrize("path", BODIES)
async def test_a_whole_answer_is_forwarded_as_it_is_and_metered(tmp_path: Path, path: str) -> None:
    raw = json.dumps(UNARY[path]).encode()
    async with upstream(answers(raw)) as up, gateway(tmp_path, [up.url]) as gw:
        async with gw.session.post(f"{gw.url}/{path}", json={**BODIES[path], "stream": False}) as answer:
            assert await answer.read() == raw
        assert gw.metric("prime_gateway_tokens_total", model="m", kind="prompt") == 7


@pytest.mark.parametrize("path", BODIES)
async def test_a_busy_fleet_is_a_429_in_each_dialect(tmp_path: Path, path: str) -> None:
    async with upstream(answers(b"{}", status=529)) as up, gateway(tmp_path, [up.url]) as gw:
        async with gw.session.post(f"{gw.url}/{path}", json=BODIES[path]) as answer:
            assert answer.status == 429
            error = await answer.json()
    assert error["error"]["type"] == "rate_limit_error"
    assert (error.get("type") == "error") is (path == "messages")


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
TOOLS = {
    "responses": [{"type": "function", "name": "f", "parameters": SCHEMA}, {"type": "web_search"}],
    "messages": [{"name": "f", "input_schema": SCHEMA}],
}
CALLS = [("f", {"n": 1}), ("f", {"n": "x"}), ("g", {})]
ITEMS = [
    {"type": "function_call", "id": f"fc{n}", "call_id": f"c{n}", "name": name, "arguments": json.dumps(given)}
    for n, (name, given) in enumerate(CALLS)
]
BLOCKS = [{"type": "tool_use", "id": f"t{n}", "name": name, "input": given} for n, (name, given) in enumerate(CALLS)]
CALLING_STREAMS = {
    "responses": [*RESPONSE_STREAM[:2], typed("response.completed", response=response(output=ITEMS, usage=R_USAGE))],
    "messages": [
        MESSAGE_STREAM[0],
        *(
            part
            for n, block in enumerate(BLOCKS)
            for part in (
                typed("content_block_start", index=n, content_block={**block, "input": {}}),
                *(
                    typed("content_block_delta", index=n, delta={"type": "input_json_delta", "partial_json": piece})
                    for piece in (json.dumps(block["input"])[:3], json.dumps(block["input"])[3:])
                    if piece
                ),
                typed("content_block_stop", index=n),
            )
        ),
        typed("message_delta", delta={"stop_reason": "tool_use", "stop_sequence": None}, usage={"output_tokens": 2}),
        typed("message_stop"),
    ],
}
CALLING_WHOLE: dict[str, dict[str, Any]] = {
    "responses": response(output=ITEMS, usage=R_USAGE),
    "messages": {**MESSAGE, "content": BLOCKS, "stop_reason": "tool_use", "usage": {**M_USAGE, "output_tokens": 2}},
}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("streamed", [True, False])
async def test_calls_that_the_frontend_parsed_pass_as_they_are_and_are_judged(
    tmp_path: Path, path: str, streamed: bool
) -> None:
    whole = json.dumps(CALLING_WHOLE[path]).encode()
    script = sends(*CALLING_STREAMS[path]) if streamed else answers(whole)
    async with upstream(script) as up, gateway(tmp_path, [up.url]) as gw:
        sent = {**BODIES[path], "stream": streamed, "tools": TOOLS[path]}
        async with gw.session.post(f"{gw.url}/{path}", json=sent) as answer:
            assert await answer.read() == (b"".join(CALLING_STREAMS[path]) if streamed else whole)
        assert up.requests[0]["body"]["tools"] == TOOLS[path]
        for verdict in ("Ok", "SchemaMismatch", "UnknownName"):
            assert gw.metric("prime_gateway_tool_calls_total", model="m", verdict=verdict) == 1
        assert gw.metric("prime_gateway_tool_answers_total", model="m", outcome="calls_wrong") == 1


BROKEN: dict[str, list[bytes]] = {
    "responses": [
        typed("response.completed", response=1),
        typed("response.completed", response={"output": 1, "usage": {"input_tokens": "x"}}),
        typed("response.completed", response={"output": [1, {"type": "function_call", "arguments": 1}], "usage": 1}),
    ],
    "messages": [
        typed("message_delta", delta={"stop_reason": []}, usage={"output_tokens": "x"}) + typed("message_stop"),
        typed("message_delta", delta=1, usage={"output_tokens": -1}) + typed("message_stop"),
    ],
}


@pytest.mark.parametrize(("path", "last"), [(path, last) for path, parts in BROKEN.items() for last in parts])
@pytest.mark.parametrize("tools", [True, False])
async def test_what_an_engine_says_wrongly_of_its_answer_costs_nobody_the_answer(
    tmp_path: Path, path: str, last: bytes, tools: bool
) -> None:
    stream = [typed("response.output_text.delta" if path == "responses" else "content_block_delta", delta={}), last]
    async with upstream(sends(*stream)) as up, gateway(tmp_path, [up.url]) as gw:
        sent = {**BODIES[path], "stream": True, **({"tools": TOOLS[path]} if tools else {})}
        async with gw.session.post(f"{gw.url}/{path}", json=sent) as answer:
            assert await answer.read() == b"".join(stream)
        async with asyncio.timeout(2):
            while gw.state.settlements:
                await asyncio.sleep(0.01)
        assert gw.metric("prime_gateway_requests_total", endpoint=path, model="m", outcome="ok") == 1


@pytest.mark.parametrize("path", BODIES)
async def test_an_event_whose_type_is_no_name_is_left_for_another_deployment(tmp_path: Path, path: str) -> None:
    good = RESPONSE_STREAM if path == "responses" else MESSAGE_STREAM
    async with upstream(sends(b'data: {"type":[1]}\n\n')) as bad, upstream(sends(*good)) as other:
        async with gateway(tmp_path, [bad.url, other.url]) as gw:
            async with gw.session.post(f"{gw.url}/{path}", json={**BODIES[path], "stream": True}) as answer:
                assert await answer.read() == b"".join(good)
