"""Cases from other gateways' bug reports that no other file holds. CASES.md says which test stands for which report."""

import ast
import asyncio
import contextlib
import gzip
import json
import re
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.gateway.test_relay import CHAT, STREAM, UNARY, WHOLE, chunk
from tests.gateway.test_typed_streams import BODIES, MESSAGE_STREAM, RESPONSE_STREAM
from tests.support.gateway import KEY, RunningGateway, gateway
from tests.support.upstream import answers, breaks, hangs, sends, upstream

ROOT = Path(__file__).parents[2]
ROUTES: dict[str, dict[str, Any]] = {
    "chat/completions": STREAM,
    "completions": {"model": "m", "prompt": "hi", "stream": True},
    **BODIES,
}


async def post(gw: RunningGateway, body: dict[str, Any], path: str = "chat/completions") -> tuple[int, bytes]:
    async with gw.session.post(f"{gw.url}/{path}", json=body) as response:
        return response.status, await response.read()


async def nothing_is_held(gw: RunningGateway) -> None:
    async with asyncio.timeout(3):
        while gw.metric("prime_gateway_admitted_requests", deployment="d0") or gw.state.settlements:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    "script", [breaks(chunk("a")), answers(b"{}", status=500), hangs(chunk("a"))], ids=["cut", "500", "client leaves"]
)
async def test_a_connection_that_fails_to_close_holds_no_capacity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: Any
) -> None:
    def fails(_: object) -> None:
        raise OSError("cannot close")

    async with upstream(script) as up, gateway(tmp_path, [up.url]) as gw:
        monkeypatch.setattr("gateway.relay.upstream.UpstreamAnswer.close", fails)
        for _ in range(3):
            with contextlib.suppress(aiohttp.ClientError):
                response = await gw.session.post(f"{gw.url}/chat/completions", json=STREAM)
                if response.status == 200:
                    await response.content.readany()
                response.close()
        await nothing_is_held(gw)
        monkeypatch.undo()


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_timeout_on_any_route_gives_its_capacity_back(tmp_path: Path, path: str, stream: bool) -> None:
    one = {"capacity": {"requests": 1}, "decode_tokens_per_second": 1000}
    async with upstream(hangs()) as up:
        async with gateway(tmp_path, [up.url], deployment=one, first_event_timeout_seconds=0.1, queue_seconds=0) as gw:
            limit = "max_output_tokens" if path == "responses" else "max_tokens"
            for _ in range(3):
                assert (await post(gw, {**ROUTES[path], "stream": stream, limit: 5}, path))[0] == 504
            await nothing_is_held(gw)


async def test_failover_sends_the_same_prompt_and_nothing_of_ours_in_it(tmp_path: Path) -> None:
    async with upstream(breaks()) as bad, upstream(sends(*WHOLE)) as good, gateway(tmp_path, [bad.url, good.url]) as gw:
        assert (await post(gw, STREAM))[0] == 200
        first, second = bad.requests[0]["body"], good.requests[0]["body"]
    assert first == second
    assert first["messages"] == STREAM["messages"]


async def test_a_gateway_timeout_of_a_deployment_moves_to_the_next(tmp_path: Path) -> None:
    for body, script in ((CHAT, answers(UNARY)), (STREAM, sends(*WHOLE))):
        folder = tmp_path / str(body.get("stream"))
        folder.mkdir()
        async with upstream(answers(b"", status=504)) as bad, upstream(script) as good:
            async with gateway(folder, [bad.url, good.url]) as gw:
                assert (await post(gw, body))[0] == 200


async def test_streams_and_whole_answers_are_metered_alike_on_every_route(tmp_path: Path) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
    typed = {"input_tokens": 7, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 3}}
    message = {"input_tokens": 4, "cache_read_input_tokens": 3, "output_tokens": 2}
    choice = {"index": 0, "text": "a", "delta": {}, "message": {}, "finish_reason": "stop"}
    event = b"data: " + json.dumps({"id": "c", "choices": [], "usage": usage}).encode() + b"\n\n"
    chat = [chunk("a"), chunk("b", "stop"), event, b"data: [DONE]\n\n"]
    whole = {"choices": [choice], "usage": usage}
    cases: dict[str, tuple[list[bytes], dict[str, Any]]] = {
        "chat/completions": (chat, whole),
        "completions": (chat, whole),
        "responses": (RESPONSE_STREAM, {"output": [], "usage": typed}),
        "messages": (MESSAGE_STREAM, {"content": [], "usage": message}),
    }

    async def engine(request: web.Request) -> web.StreamResponse:
        events, body = cases[request.path.removeprefix("/v1/")]
        streams = (await request.json()).get("stream")
        return await (sends(*events) if streams else answers(json.dumps(body).encode()))(request)

    kept: list[Any] = []
    async with upstream(engine) as up, gateway(tmp_path, [up.url]) as gw:
        gw.state.settle_stream = SimpleNamespace(keep=kept.append)  # type: ignore[assignment]
        for path, body in ROUTES.items():
            for stream in (True, False):
                assert (await post(gw, {**body, "stream": stream}, path))[0] == 200
        await nothing_is_held(gw)
    counted = {(each.prompt_tokens, each.completion_tokens, each.cached_tokens) for each in kept}
    assert len(kept) == 8
    assert counted == {(7, 2, 3)}


async def test_an_engines_own_headers_stay_inside(tmp_path: Path) -> None:
    async def engine(_: web.Request) -> web.StreamResponse:
        headers = {"x-worker": "10.0.0.1", "set-cookie": "a=b", "keep-alive": "timeout=9", "server": "engine"}
        return web.Response(body=UNARY, headers=headers, content_type="application/json")

    async with upstream(engine) as up, gateway(tmp_path, [up.url]) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
            body = await response.read()
            names = {name.lower() for name in response.headers}
        assert int(response.headers["content-length"]) == len(body)
    assert names <= {"content-length", "content-type", "x-request-id"}
    assert not {"accept-encoding", "transfer-encoding"} & set(up.requests[0]["headers"])


async def test_a_compressed_request_is_not_read_and_one_of_two_lengths_is_no_request(tmp_path: Path) -> None:
    body = gzip.compress(json.dumps(CHAT).encode())
    async with upstream(answers(UNARY)) as up, gateway(tmp_path, [up.url]) as gw:
        headers = {"content-encoding": "gzip", "content-type": "application/json"}
        async with gw.session.post(f"{gw.url}/chat/completions", data=body, headers=headers) as response:
            assert response.status == 400
        host, port = gw.url.removeprefix("http://").removesuffix("/api/v1").split(":")
        head = f"POST /api/v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
        smuggled = "content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /api/v1/models HTTP/1.1\r\n\r\n"

        def answered() -> bytes:
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                connection.sendall((head + smuggled).encode())
                got = b""
                while part := connection.recv(65536):
                    got += part
                return got

        got = await asyncio.to_thread(answered)
        assert got.startswith(b"HTTP/1.1 400 ")
        assert up.requests == []


def test_each_case_that_is_named_exists() -> None:
    table = (Path(__file__).parent / "CASES.md").read_text()
    rows = re.findall(r"^\| (\d+) \|", table, re.MULTILINE)
    assert rows == sorted(rows, key=int)
    named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", table)
    assert len(named) > 40
    for file, test in named:
        tree = ast.parse((ROOT / "tests" / file).read_text())
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert test in names, f"{file} has no {test}"
