"""Canaries: a key, a wrong key, a prompt and an answer that would be recognised anywhere, sent the whole way and through
every error; none may be found in logs, metrics, traces or Valkey, no key in what leaves for the engines or the client."""

import asyncio
import contextlib
import io
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from redis import Redis

from gateway.telemetry.logs import LineHandler, log_loop_error
from gateway.telemetry.spans import Tracing
from prime_inference.keys import hash_of
from tests.gateway.test_relay import DONE, chunk
from tests.gateway.test_typed_streams import MESSAGE_STREAM, RESPONSE_STREAM
from tests.support.gateway import RunningGateway, gateway
from tests.support.upstream import upstream
from tests.valkey_server import ValkeyServer

KEY = "sk-canary-key-7d1f"
WRONG_KEY = "sk-canary-wrong-2b9e"
PROMPT = "canary-prompt-5c3a"
ANSWER = "canary-answer-9e8d"
SECRET = "canary-secret-1f6b"
NOWHERE = (KEY, WRONG_KEY, PROMPT, ANSWER, SECRET)
"""In no log, metric or Valkey."""

USER = [{"role": "user", "content": PROMPT}]
PATHS: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": USER, "session_id": PROMPT},
    "completions": {"prompt": PROMPT, "prompt_cache_key": PROMPT},
    "responses": {"input": PROMPT},
    "messages": {"messages": USER, "max_tokens": 5},
}
UNARY = {
    "chat/completions": {"choices": [{"index": 0, "message": {"content": ANSWER}, "finish_reason": "stop"}]},
    "completions": {"choices": [{"index": 0, "text": ANSWER, "finish_reason": "stop"}]},
    "responses": {"status": "completed", "output": [{"text": ANSWER}]},
    "messages": {"content": [{"type": "text", "text": ANSWER}]},
}
STREAMS = {
    "chat/completions": [chunk(ANSWER), chunk("", "stop"), DONE],
    "completions": [chunk(ANSWER), chunk("", "stop"), DONE],
    "responses": [each.replace(b"usage", ANSWER.encode()) for each in RESPONSE_STREAM],
    "messages": [each.replace(b'"hi"', f'"{ANSWER}"'.encode()) for each in MESSAGE_STREAM],
}
QUOTING = f"cannot answer {PROMPT} with {ANSWER}"
"""Engines quote what they choke on."""
FAULTS = (
    "none", "400", "401", "404", "500", "503", "529", "html", "garbage", "error_first", "error_later", "cut", "dies",
    "bad_usage", "bad_shape",
)  # fmt: skip


async def answer(request: web.Request) -> web.StreamResponse:
    body = await request.json()
    path, fault = request.path.removeprefix("/v1/"), body.get("fault", "none")
    if fault.isdigit():
        return web.json_response({"error": {"message": QUOTING, "code": int(fault)}}, status=int(fault))
    if fault == "html":
        return web.Response(text=f"<p>{QUOTING}</p>", status=502)
    if fault == "slow":
        await asyncio.sleep(0.5)
    if not body.get("stream"):
        whole: dict[str, Any] = dict(UNARY[path])
        if fault == "bad_usage":
            whole["usage"] = {"prompt_tokens": QUOTING, "input_tokens": QUOTING}
        if fault == "bad_shape":
            whole = {"choices": QUOTING, "output": QUOTING, "content": QUOTING}
        text = QUOTING if fault in ("garbage", "cut", "dies") else json.dumps(whole)
        return web.Response(text=text, content_type="application/json")
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    error = f'data: {{"error":{{"message":"{QUOTING}","code":500}}}}\n\n'.encode()
    events = list(STREAMS[path])
    broken: dict[str, list[bytes]] = {
        "garbage": [f"data: {{{QUOTING}\n\n".encode()],
        "error_first": [error],
        "error_later": [*events[:2], error],
        "cut": events[:2],
        "dies": events[:2],
        "bad_usage": [*events[:2], f'data: {{"type":"x","choices":[],"usage":{{"prompt_tokens":"{QUOTING}"}}}}\n\n'.encode()],
        "bad_shape": [f'data: {{"choices":"{QUOTING}"}}\n\n'.encode()],
    }  # fmt: skip
    for event in broken.get(fault, events):
        await response.write(event)
        await asyncio.sleep(0.005)
    if fault == "dies":
        assert request.transport is not None
        request.transport.abort()
    return response


@contextlib.contextmanager
def everything_logged() -> Iterator[io.BytesIO]:
    """All loggers at their most talkative, written as the process writes them."""
    text = io.BytesIO()
    handler = LineHandler(text)
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield text
    finally:
        root.removeHandler(handler)
        handler.flush()
        root.setLevel(before)


async def sent(gw: RunningGateway, path: str, key: str = KEY, **kwargs: Any) -> bytes:
    """Whatever comes back, status line and headers too."""
    headers = {"authorization": f"Bearer {key}", **kwargs.pop("headers", {})}
    got = b""
    try:
        async with gw.session.request(
            kwargs.pop("method", "POST"), gw.url + path, headers=headers, **kwargs
        ) as response:
            got = f"{response.status} {response.reason} {dict(response.headers)}".encode()
            async for part in response.content.iter_any():
                got += part
    except aiohttp.ClientError:
        pass
    return got


async def every_way(gw: RunningGateway) -> AsyncIterator[bytes]:
    for path, fields in PATHS.items():
        for stream in (False, True):
            for fault in FAULTS:
                yield await sent(gw, f"/{path}", json={"model": "m", "stream": stream, "fault": fault, **fields})
        good = {"model": "m", **fields}
        yield await sent(gw, f"/{path}", json={**good, "model": PROMPT})
        yield await sent(gw, f"/{path}", data=f'{{"model": "m", "{PROMPT}'.encode())
        yield await sent(gw, f"/{path}", data=PROMPT.encode() * 10_000)
        yield await sent(gw, f"/{path}", json={**good, "stream": PROMPT})
        yield await sent(gw, f"/{path}", key=WRONG_KEY, json=good)
        yield await sent(gw, f"/{path}", headers={"authorization": WRONG_KEY}, json=good)
        yield await sent(gw, f"/{path}", headers={"authorization": "", "x-api-key": WRONG_KEY}, json=good)
        yield await sent(gw, f"/{path}", json=good, headers={"x-session-id": PROMPT, "x-request-id": f"{PROMPT} {KEY}"})
        image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"http://{PROMPT}"}}]}
        yield await sent(gw, f"/{path}", json={**good, "messages": [image], "input": [image]})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await sent(gw, f"/{path}", json={**good, "fault": "slow"})
    yield await sent(gw, f"/models/{PROMPT}?key={KEY}", method="GET")
    yield await sent(gw, f"/{PROMPT}?key={KEY}", method="GET")


def kept_in(valkey: "Redis") -> str:
    """Every key of a Valkey and all that it holds."""
    read = {
        b"string": valkey.get,
        b"hash": valkey.hgetall,
        b"zset": lambda key: valkey.zrange(key, 0, -1),
        b"stream": valkey.xrange,
        b"set": valkey.smembers,
    }
    return repr([(key, read[valkey.type(key)](key)) for key in valkey.scan_iter()])


@asynccontextmanager
async def canary_gateway(folder: Path, valkey: ValkeyServer) -> AsyncIterator[tuple[RunningGateway, Any]]:
    key = {"sha256": hash_of(KEY), "requests_per_minute": 100_000, "tokens_per_minute": 10_000_000}
    async with (
        upstream(answer) as up,
        gateway(
            folder, [up.url], key=key, secret=SECRET, max_body_bytes=100_000, first_event_timeout_seconds=5,
            valkey_url=f"redis://127.0.0.1:{valkey.port}",
        ) as gw,
    ):  # fmt: skip
        yield gw, up


async def test_no_key_no_prompt_and_no_answer_is_found_where_it_does_not_belong(
    tmp_path: Path, own_valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.get_running_loop().set_exception_handler(log_loop_error)
    spans, provider = InMemorySpanExporter(), TracerProvider()
    with everything_logged() as logs, own_valkey.client() as valkey:
        async with canary_gateway(tmp_path, own_valkey) as (gw, up):
            # Breakers would open for the faults, and hide the rest.
            monkeypatch.setattr(gw.state.guards.of("local").breakers, "report", lambda *_: None)
            provider.add_span_processor(SimpleSpanProcessor(spans))
            gw.state.tracing = Tracing(provider)
            answers = [each async for each in every_way(gw)]

            def broken(*_: object) -> None:
                raise RuntimeError(f"a bug that quotes {PROMPT} and {KEY}")

            monkeypatch.setattr("gateway.api.generate.targets", broken)
            answers.append(await sent(gw, "/chat/completions", json={"model": "m", "messages": USER}))
            asyncio.get_running_loop().call_soon(broken)
            async with asyncio.timeout(10):
                while gw.state.settlements or up.open_requests:
                    await asyncio.sleep(0.02)
            async with gw.session.get(f"{gw.internal_url}/metrics") as response:
                metrics = await response.text()
            live = kept_in(valkey)
        kept = kept_in(valkey)
    text = logs.getvalue().decode()
    assert len(answers) > 150
    assert sum(ANSWER.encode() in each for each in answers) >= 8, "the canaries did go through"
    assert text.count('"message":"request"') > 150
    assert text.count("RuntimeError") >= 2
    assert "prime:settle" in kept
    assert "lease" in live
    traces = "".join(each.to_json() for each in spans.get_finished_spans())
    assert traces.count("gen_ai.operation.name") > 150
    for canary in NOWHERE:
        for where, found in (("logs", text), ("metrics", metrics), ("traces", traces), ("valkey", live + kept)):
            assert canary not in found, f"{canary} in {where}: {_around(found, canary)}"
    upstream_text = json.dumps(up.requests)
    assert PROMPT in upstream_text
    for canary in (KEY, WRONG_KEY, SECRET):
        assert canary not in upstream_text
        assert not any(canary.encode() in each for each in answers)
    headers = json.dumps([each["headers"] for each in up.requests])
    assert PROMPT not in headers


def _around(text: str, canary: str) -> str:
    at = text.index(canary)
    return text[max(0, at - 300) : at + 300]
