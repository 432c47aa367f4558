"""What a request is reckoned at, once the engine has said what its prefill had to compute."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.gateway.test_relay import STREAM
from tests.gateway.test_typed_streams import BODIES, MESSAGE, R_USAGE, response, typed
from tests.support.gateway import RunningGateway, gateway
from tests.support.upstream import answers, hangs, sends, upstream

COMPLETION = {"model": "m", "prompt": "hi", "stream": True}
DETAILS = {"cached_tokens": 700}


def running(path: str, details: dict[str, int] | None = DETAILS, count: int = 1) -> bytes:
    """A chunk in mid-stream as Dynamo sends it, with what the engine found of the prompt."""
    text = {"text": "a"} if path == "completions" else {"delta": {"content": "a"}}
    usage = {"prompt_tokens": 1000, "completion_tokens": count, "prompt_tokens_details": details}
    body = {"id": "c", "choices": [{"index": 0, **text, "finish_reason": None}], "usage": usage}
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


M_GUESS = typed("message_start", message={**MESSAGE, "usage": {"input_tokens": 1500, "output_tokens": 0}})
M_BLOCK = typed("content_block_start", index=0, content_block={"type": "text", "text": ""})
M_DELTA = typed(
    "content_block_delta",
    index=0,
    delta={"type": "text_delta", "text": "hi"},
    usage={"input_tokens": 300, "output_tokens": 1, "cache_read_input_tokens": 700},
)


async def tokens_held(gw: RunningGateway, expected: int) -> None:
    async with asyncio.timeout(3):
        while gw.metric("prime_gateway_admitted_tokens", deployment="d0") != expected:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("path", "body", "parts"),
    [
        ("chat/completions", STREAM, [running("chat/completions")]),
        ("completions", COMPLETION, [running("completions")]),
        ("chat/completions", STREAM, [running("chat/completions", None), running("chat/completions")]),
        ("messages", BODIES["messages"], [M_GUESS, M_BLOCK, M_DELTA]),
    ],
    ids=["chat", "text", "chat, the cache told late", "messages"],
)
async def test_a_streams_weight_is_corrected_when_its_first_token_comes(
    tmp_path: Path, path: str, body: dict[str, Any], parts: list[bytes]
) -> None:
    async with upstream(hangs(*parts)) as up, gateway(tmp_path, [up.url]) as gw:
        async with gw.session.post(f"{gw.url}/{path}", json=body) as answer:
            assert await answer.content.readany()
            await tokens_held(gw, 300)
        if path != "messages":
            assert up.requests[0]["body"]["stream_options"]["continuous_usage_stats"] is True
        await tokens_held(gw, 0)


@pytest.mark.parametrize("parts", [[running("chat/completions", None)], [M_GUESS, M_BLOCK]], ids=["chat", "messages"])
async def test_an_engine_that_does_not_say_what_it_found_changes_nothing(tmp_path: Path, parts: list[bytes]) -> None:
    path, body = ("messages", BODIES["messages"]) if parts[0] is M_GUESS else ("chat/completions", STREAM)
    async with upstream(hangs(*parts)) as up, gateway(tmp_path, [up.url]) as gw:
        async with gw.session.post(f"{gw.url}/{path}", json=body) as answer:
            await answer.content.readany()
            await asyncio.sleep(0.1)
            assert 0 < gw.metric("prime_gateway_admitted_tokens", deployment="d0") < 100


async def test_responses_say_what_they_used_at_their_end_and_the_session_knows_it_then(tmp_path: Path) -> None:
    stream = [
        typed("response.created", response=response("in_progress")),
        typed("response.output_text.delta", delta="hi"),
        typed("response.completed", response=response(usage={**R_USAGE, "input_tokens": 1000})),
    ]
    async with upstream(sends(*stream)) as up, gateway(tmp_path, [up.url]) as gw:
        async with gw.session.post(f"{gw.url}/responses", json=BODIES["responses"]) as answer:
            await answer.read()
        (turn,) = gw.state.sessions._turns.values()
        assert turn.prompt_tokens == 1000


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_what_a_client_used_that_left_in_mid_stream_is_recorded(tmp_path: Path, path: str) -> None:
    kept: list[Any] = []
    parts = [running(path, count=count) for count in (1, 2, 3)]
    async with upstream(hangs(*parts)) as up, gateway(tmp_path, [up.url]) as gw:
        gw.state.settle_stream = SimpleNamespace(keep=kept.append)  # type: ignore[assignment]
        body = STREAM if path == "chat/completions" else COMPLETION
        async with gw.session.post(f"{gw.url}/{path}", json=body) as answer:
            got = b""
            while got.count(b"data: ") < 3:
                got += await answer.content.readany()
        async with asyncio.timeout(2):
            while not kept:
                await asyncio.sleep(0.01)
    (record,) = kept
    assert (record.outcome, record.prompt_tokens, record.completion_tokens) == ("client_gone", 1000, 3)
    assert b"usage" not in got


async def test_unary_answers_correct_nothing_that_lasts(tmp_path: Path) -> None:
    answer = {"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 1000, "completion_tokens": 1}}
    async with upstream(answers(json.dumps(answer).encode())) as up, gateway(tmp_path, [up.url]) as gw:
        body = {**STREAM, "stream": False}
        async with gw.session.post(f"{gw.url}/chat/completions", json=body) as response_:
            await response_.read()
        await tokens_held(gw, 0)
