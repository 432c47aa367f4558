"""The relay on real sockets: a scripted deployment behind, an HTTP client in front."""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.relay.stream import StreamEditor
from tests.support.gateway import KEY, gateway
from tests.support.upstream import Script, answers, breaks, hangs, sends, upstream

DONE = b"data: [DONE]\n\n"
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**CHAT, "stream": True}


def chunk(content: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": finish}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9}}\n\n'
WHOLE = [chunk("a"), chunk("é🦀"), chunk("c", "stop"), USAGE, DONE]
UNARY = json.dumps(
    {
        "id": "c",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}},
        "nvext": {"timing": {"ttft_ms": 1.0}},
    }
).encode()


async def test_a_stream_reaches_the_client_byte_for_byte(tmp_path: Path) -> None:
    async with upstream(sends(*WHOLE)) as up, gateway(tmp_path, [up.url]) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", json=STREAM) as response:
            assert response.status == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            assert await response.read() == b"".join(WHOLE).replace(USAGE, b"")
        assert gw.metric("prime_gateway_tokens_total", model="m", kind="prompt") == 7


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
async def test_every_cut_of_the_upstream_bytes_gives_the_same_answer(tmp_path: Path, size: int) -> None:
    whole = b"".join(WHOLE)
    parts = [whole[start : start + size] for start in range(0, len(whole), size)]
    async with upstream(sends(*parts)) as up, gateway(tmp_path, [up.url]) as gw:
        body = {**STREAM, "stream_options": {"include_usage": True}}
        async with gw.session.post(f"{gw.url}/chat/completions", json=body) as response:
            assert await response.read() == whole


async def test_a_unary_answer_loses_only_the_engines_extension(tmp_path: Path) -> None:
    async with upstream(answers(UNARY)) as up, gateway(tmp_path, [up.url]) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
            answer = await response.json()
        expected = json.loads(UNARY)
        del expected["nvext"]
        assert answer == expected
        assert gw.metric("prime_gateway_tokens_total", model="m", kind="cached") == 3


async def test_what_leaves_for_the_engines_is_ours_alone(tmp_path: Path) -> None:
    async with upstream(answers(UNARY)) as up, gateway(tmp_path, [up.url]) as gw:
        sent = {
            "x-dynamo-session-id": "mine",
            "x-tenant-id": "other",
            "x-dynamo-worker-instance-id": "1",
            "cookie": "c=1",
        }
        async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT, headers=sent) as response:
            assert response.status == 200
        headers = up.requests[0]["headers"]
        assert headers["x-dynamo-session-id"] != "mine"
        assert headers["x-tenant-id"] != "other"
        assert not {"authorization", "cookie", "x-dynamo-worker-instance-id"} & set(headers)


async def test_a_request_id_goes_the_whole_way(tmp_path: Path) -> None:
    async with upstream(answers(UNARY)) as up, gateway(tmp_path, [up.url]) as gw:
        for given, kept in (("abc-1", True), ("bad id\u00e9", False), ("x" * 300, False)):
            sent = {"x-request-id": given.encode("latin-1").decode("latin-1")}
            async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT, headers=sent) as response:
                assert (response.headers["x-request-id"] == given) is kept
            assert up.requests[-1]["headers"]["x-request-id"] == response.headers["x-request-id"]


BUSY = answers(b'{"message":"Service temporarily overloaded","type":"Overloaded","code":529}', status=529)
FAILING: dict[str, tuple[Script, int]] = {
    "busy": (BUSY, 429),
    "unavailable": (answers(b"{}", status=503), 503),
    "no workers yet": (answers(b'{"message":"Model not found"}', status=404), 503),
    "server error": (answers(b"{}", status=500), 502),
    "an error event first": (sends(b'data: {"error":{"message":"boom","code":500}}\n\n', DONE), 502),
    "a bare error event": (sends(b"event: error\n: lost\n\n"), 502),
    "an empty 200": (sends(), 502),
    "only comments": (sends(b": ping\n\n", b": ping\n\n"), 502),
    "a cut before the first event": (breaks(), 503),
    "an error event with plain data": (sends(b"event: error\ndata: boom\n\n"), 502),
    "an event that is no object": (sends(b"data: 1\n\n", DONE), 502),
    "choices that are none": (sends(b'data: {"id":"c","choices":[1]}\n\n', DONE), 502),
    "a delta that is none": (sends(b'data: {"id":"c","choices":[{"index":0,"delta":"a"}]}\n\n', DONE), 502),
}


@pytest.mark.parametrize("name", FAILING)
async def test_a_failure_before_the_first_event_moves_to_the_next_deployment(tmp_path: Path, name: str) -> None:
    script, _ = FAILING[name]
    async with upstream(script) as bad, upstream(sends(*WHOLE)) as good, gateway(tmp_path, [bad.url, good.url]) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", json=STREAM) as response:
            assert await response.read() == b"".join(WHOLE).replace(USAGE, b"")
        assert len(bad.requests) == len(good.requests) == 1


@pytest.mark.parametrize("name", FAILING)
async def test_when_every_deployment_fails_the_client_gets_a_status(tmp_path: Path, name: str) -> None:
    script, status = FAILING[name]
    async with upstream(script) as bad, gateway(tmp_path, [bad.url]) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", json=STREAM) as response:
            assert response.status == status
            error = (await response.json())["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert ("retry-after" in response.headers) is (status in (429, 503))
        assert gw.metric("prime_gateway_in_flight_requests", endpoint="chat/completions") == 0


async def test_a_dead_frontend_is_left_behind(tmp_path: Path) -> None:
    async with upstream(answers(UNARY)) as good, gateway(tmp_path, ["http://127.0.0.1:9", good.url]) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
            assert response.status == 200
        assert gw.metric("prime_gateway_attempts_total", deployment="d0", result="connect") == 1


@pytest.mark.parametrize("name", ["busy", "unavailable"])
async def test_every_deployment_is_asked_once_before_the_client_hears_that_none_can(tmp_path: Path, name: str) -> None:
    script, status = FAILING[name]
    async with upstream(script) as bad, upstream(answers(UNARY)) as good:
        (tmp_path / "some").mkdir()
        async with gateway(tmp_path / "some", [*[bad.url] * 4, good.url]) as gw:
            async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
                assert response.status == 200
        assert len(bad.requests) == 4
        async with gateway(tmp_path, [bad.url] * 5) as gw:
            async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
                assert response.status == status
        assert len(bad.requests) == 9


async def test_an_attempt_that_cost_an_engine_work_is_made_three_times_at_most(tmp_path: Path) -> None:
    script, status = FAILING["server error"]
    async with upstream(script) as bad, gateway(tmp_path, [bad.url] * 5) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
            assert response.status == status
        assert len(bad.requests) == 3


async def test_a_client_without_time_for_any_attempt_gets_a_timeout(tmp_path: Path) -> None:
    async with upstream(answers(UNARY)) as up, gateway(tmp_path, [up.url]) as gw:
        headers = {"x-stainless-read-timeout": "0.015"}
        async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT, headers=headers) as response:
            assert response.status == 504


async def test_a_refused_request_is_not_tried_elsewhere(tmp_path: Path) -> None:
    refusing = answers(b'{"message":"Validation: Temperature must be between 0 and 2","code":400}', status=400)
    async with (
        upstream(refusing) as one,
        upstream(answers(UNARY)) as other,
        gateway(tmp_path, [one.url, other.url]) as gw,
    ):
        async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
            assert response.status == 400
            assert "Temperature" in (await response.json())["error"]["message"]
        assert other.requests == []


@pytest.mark.parametrize("script", [breaks(chunk("a")), sends(chunk("a")), sends(chunk("a"), DONE)])
async def test_a_failure_after_the_first_event_is_an_error_event_and_no_second_attempt(
    tmp_path: Path, script: Script
) -> None:
    async with upstream(script) as bad, upstream(sends(*WHOLE)) as good, gateway(tmp_path, [bad.url, good.url]) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", json=STREAM) as response:
            body = await response.read()
        assert body.startswith(chunk("a"))
        assert body.count(b'"error":{') == 1
        assert body.endswith(DONE)
        assert good.requests == []


async def test_a_silent_stream_ends_after_the_idle_timeout(tmp_path: Path) -> None:
    async with upstream(hangs(chunk("a"))) as up, gateway(tmp_path, [up.url], idle_timeout_seconds=0.3) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", json=STREAM) as response:
            assert b'"code":"502"' in await response.read()


async def test_comments_of_a_frontend_are_no_sign_of_life(tmp_path: Path) -> None:
    async with (
        upstream(sends(chunk("a"), *[b": keep-alive\n\n"] * 100, pause_s=0.05)) as up,
        gateway(tmp_path, [up.url], idle_timeout_seconds=0.3) as gw,
    ):
        async with asyncio.timeout(5), gw.session.post(f"{gw.url}/chat/completions", json=STREAM) as response:
            body = await response.read()
    assert b'"code":"502"' in body
    assert b"no event for 0.3 s" in body
    assert body.count(b": keep-alive") >= 3


async def test_a_deployment_that_never_begins_times_out(tmp_path: Path) -> None:
    async with upstream(hangs()) as up, gateway(tmp_path, [up.url], first_event_timeout_seconds=0.3) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", json=STREAM) as response:
            assert response.status == 504


@pytest.mark.parametrize(
    ("script", "body", "reads"),
    [(hangs(), STREAM, 0), (hangs(chunk("a")), STREAM, 1), (hangs(), CHAT, 0)],
    ids=["before the first event", "in the middle", "unary"],
)
async def test_a_client_that_leaves_frees_the_upstream_within_a_second(
    tmp_path: Path, script: Script, body: dict[str, Any], reads: int
) -> None:
    async with upstream(script) as up, gateway(tmp_path, [up.url]) as gw:
        async with aiohttp.ClientSession(headers=dict(gw.session.headers)) as leaving:
            request = asyncio.create_task(leaving.post(f"{gw.url}/chat/completions", json=body))
            async with asyncio.timeout(5):
                while up.open_requests == 0:
                    await asyncio.sleep(0.01)
                if reads:
                    response = await request
                    assert await response.content.readany() == chunk("a")
                    response.close()
                else:
                    request.cancel()
            async with asyncio.timeout(1):
                while up.open_requests or gw.metric("prime_gateway_in_flight_requests", endpoint="chat/completions"):
                    await asyncio.sleep(0.01)
        assert up.gone == 1
        labels = {"endpoint": "chat/completions", "model": "m", "outcome": "client_gone"}
        assert gw.metric("prime_gateway_requests_total", **labels) == 1


async def test_a_ten_megabyte_event_passes(tmp_path: Path) -> None:
    large = chunk("x" * 10_000_000)
    events = [chunk("a"), large, chunk("b", "stop"), DONE]
    async with upstream(sends(*events)) as up, gateway(tmp_path, [up.url]) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", json=STREAM) as response:
            assert await response.read() == b"".join(events)


async def test_an_event_past_the_limit_becomes_an_error_event(tmp_path: Path) -> None:
    async with (
        upstream(sends(chunk("a"), chunk("x" * 5000), pause_s=0.05)) as up,
        gateway(tmp_path, [up.url], max_event_bytes=2000) as gw,
    ):
        async with gw.session.post(f"{gw.url}/chat/completions", json=STREAM) as response:
            body = await response.read()
        assert body.endswith(DONE)
        assert b"more than 2000 bytes" in body


async def test_connections_are_used_again_after_a_whole_stream(tmp_path: Path) -> None:
    async with upstream(sends(*WHOLE)) as up, gateway(tmp_path, [up.url]) as gw:
        for _ in range(5):
            async with gw.session.post(f"{gw.url}/chat/completions", json=STREAM) as response:
                await response.read()
            async with asyncio.timeout(2):
                while gw.metric("prime_gateway_in_flight_requests", endpoint="chat/completions"):
                    await asyncio.sleep(0.01)
        assert len(up.peers) == 1


async def test_a_client_that_does_not_read_is_ended_by_the_total_timeout(tmp_path: Path) -> None:
    part = chunk("x" * 60_000)

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        while True:
            await response.write(part)

    async with upstream(endless) as up, gateway(tmp_path, [up.url], total_timeout_seconds=0.5) as gw:
        host, port = gw.url.removeprefix("http://").removesuffix("/api/v1").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        body = json.dumps(STREAM).encode()
        head = f"POST /api/v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        async with asyncio.timeout(15):
            while up.open_requests == 0:
                await asyncio.sleep(0.01)
            while up.open_requests or gw.metric("prime_gateway_in_flight_requests", endpoint="chat/completions"):
                await asyncio.sleep(0.05)
        labels = {"endpoint": "chat/completions", "model": "m", "outcome": "stream_error"}
        assert gw.metric("prime_gateway_requests_total", **labels) == 1
        writer.transport.abort()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "usage",
    [
        b'{"prompt_tokens":"x"}',
        b'{"prompt_tokens":-5}',
        b'{"prompt_tokens":1,"prompt_tokens_details":[1]}',
        b'{"prompt_tokens":true}',
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
async def test_a_usage_of_no_counts_costs_nobody_an_answer(tmp_path: Path, usage: bytes, streamed: bool) -> None:
    whole = (
        b'{"id":"c","choices":[{"index":0,"message":{"content":"a"},"finish_reason":"stop"}],"usage":' + usage + b"}"
    )
    last = b'data: {"id":"c","choices":[],"usage":' + usage + b"}\n\n"
    script = sends(chunk("a"), chunk("", "stop"), last, DONE, pause_s=0.02) if streamed else answers(whole)
    async with upstream(script) as up, gateway(tmp_path, [up.url]) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", json={**CHAT, "stream": streamed}) as response:
            assert response.status == 200
            assert await response.read() == (chunk("a") + chunk("", "stop") + DONE if streamed else whole)
        async with asyncio.timeout(2):
            while gw.state.settlements:
                await asyncio.sleep(0.01)
        assert gw.metric("prime_gateway_tokens_total", model="m", kind="prompt") == 0
        labels = {"endpoint": "chat/completions", "model": "m", "outcome": "ok"}
        assert gw.metric("prime_gateway_requests_total", **labels) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"1",
        b"<html>",
        b'{"choices":[1]}',
        b'{"choices":"a"}',
        b'{"choices":[{"message":[]}]}',
        b'{"choices":[{"message":{"content":1}}]}',
    ],
)
async def test_a_whole_answer_that_is_no_completion_is_asked_of_the_next_deployment(
    tmp_path: Path, body: bytes
) -> None:
    async with upstream(answers(body)) as bad, upstream(answers(UNARY)) as good:
        async with gateway(tmp_path, [bad.url, good.url]) as gw:
            async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
                assert response.status == 200
            assert len(bad.requests) == len(good.requests) == 1


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_limit_of_hundreds_of_digits_is_the_engines_to_judge(tmp_path: Path, streamed: bool) -> None:
    async with upstream(sends(*WHOLE) if streamed else answers(UNARY)) as up, gateway(tmp_path, [up.url]) as gw:
        body = {**CHAT, "stream": streamed, "max_tokens": 10**500}
        async with gw.session.post(f"{gw.url}/chat/completions", json=body) as response:
            assert response.status == 200
        assert up.requests[0]["body"]["max_tokens"] == 10**500


async def test_a_bug_in_the_middle_of_a_stream_is_an_error_event_and_counted_as_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def buggy(_editor: StreamEditor, _event: bytes) -> bytes:
        raise AttributeError("ours")

    async with upstream(sends(chunk("a"), chunk("b"), pause_s=0.2)) as up, gateway(tmp_path, [up.url]) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", json=STREAM) as response:
            monkeypatch.setattr(StreamEditor, "feed", buggy)
            body = await response.read()
        assert body.startswith(chunk("a"))
        assert b'"code":"500"' in body
        assert body.endswith(DONE)
        assert gw.state.settlements == 0
        labels = {"endpoint": "chat/completions", "model": "m", "outcome": "internal_error"}
        assert gw.metric("prime_gateway_requests_total", **labels) == 1
        endings = "prime_gateway_attempt_endings_total"
        assert gw.metric(endings, deployment="d0", ending="client_gone") == 1, "not the deployment's fault"


async def test_a_long_prefill_after_the_headers_is_not_a_silent_stream(tmp_path: Path) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(0.6)
        await response.write(b"".join(WHOLE))
        return response

    async with upstream(slow) as up, gateway(tmp_path, [up.url], idle_timeout_seconds=0.2) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", json=STREAM) as response:
            assert response.status == 200
            assert (await response.read()).endswith(DONE)
        assert len(up.requests) == 1


async def test_a_unary_answer_of_a_failed_engine_is_no_answer(tmp_path: Path) -> None:
    failed = UNARY.replace(b'"finish_reason": "stop"', b'"finish_reason": "error"')
    async with upstream(answers(failed)) as bad, upstream(answers(UNARY)) as good:
        async with gateway(tmp_path, [bad.url, good.url]) as gw:
            async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
                assert (await response.json())["choices"][0]["finish_reason"] == "stop"


async def test_requests_without_a_tenant_leave_no_settle_record(tmp_path: Path) -> None:
    kept: list[Any] = []
    async with upstream(answers(UNARY)) as up, gateway(tmp_path, [up.url]) as gw:
        gw.state.settle_stream = SimpleNamespace(keep=kept.append)  # type: ignore[assignment]
        for key in ("sk-wrong", KEY, KEY):
            headers = {"authorization": f"Bearer {key}"}
            async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT, headers=headers) as response:
                await response.read()
    assert [record.tenant for record in kept] == ["t", "t"]
    assert len({record.settle_id for record in kept}) == 2
