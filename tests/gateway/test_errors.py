"""Every wrong request gets an OpenAI error object."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.listener import MOST_HEAD_BYTES
from tests.support.gateway import gateway
from tests.support.upstream import answers, hangs, upstream

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("method", "path", "kwargs", "status", "code"),
    [
        ("GET", "/nope", {}, 404, "unknown_route"),
        ("POST", "/chat/completions/", {"json": CHAT}, 404, "unknown_route"),
        ("GET", "/chat/completions", {}, 405, "method_not_allowed"),
        ("POST", "/models", {}, 405, "method_not_allowed"),
        ("GET", "/models/unknown", {}, 404, "model_not_found"),
        ("POST", "/chat/completions", {"data": b"{"}, 400, "invalid_json"),
        ("POST", "/chat/completions", {"data": b"\xff"}, 400, "invalid_json"),
        ("POST", "/chat/completions", {"data": b""}, 400, "invalid_json"),
        ("POST", "/chat/completions", {"json": {"model": "x", "messages": [{"role": "user"}]}}, 404, "model_not_found"),
        ("POST", "/chat/completions", {"json": {**CHAT, "n": 3}}, 400, "unsupported_value"),
        ("POST", "/chat/completions", {"json": {**CHAT, "n": True}}, 400, "unsupported_value"),
        ("POST", "/completions", {"json": {"model": "m"}}, 400, "missing_required_parameter"),
        ("POST", "/chat/completions", {"data": b"x" * 2000}, 413, "payload_too_large"),
        ("GET", "/models", {"headers": {"authorization": "Bearer sk-wrong"}}, 401, "invalid_api_key"),
        ("GET", "/models", {"headers": {"authorization": "Basic abc"}}, 401, "invalid_api_key"),
        ("GET", "/models", {"headers": {"authorization": "Bearer ' OR 1=1 --"}}, 401, "invalid_api_key"),
        ("POST", "/chat/completions", {"json": CHAT, "headers": {"authorization": ""}}, 401, "invalid_api_key"),
    ],
)
async def test_a_wrong_request_gets_an_openai_error(
    tmp_path: Path, method: str, path: str, kwargs: dict[str, Any], status: int, code: str
) -> None:
    async with gateway(tmp_path, ["http://127.0.0.1:9"], max_body_bytes=1000) as gw:
        async with gw.session.request(method, gw.url + path, **kwargs) as response:
            assert response.status == status
            error = (await response.json())["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["code"] == code
            assert response.headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "status", "kind"), [("GET", 405, "invalid_request_error"), ("POST", 500, "api_error")]
)
async def test_every_error_of_messages_has_anthropics_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, status: int, kind: str
) -> None:
    def buggy(*_: object) -> None:
        raise AttributeError("ours")

    monkeypatch.setattr("gateway.api.generate.targets", buggy)
    async with gateway(tmp_path, ["http://127.0.0.1:9"]) as gw:
        async with gw.session.request(method, f"{gw.url}/messages", json={**CHAT, "max_tokens": 5}) as response:
            assert response.status == status
            answer = await response.json()
        assert answer["type"] == "error"
        assert answer["error"]["type"] == kind


async def test_a_chunked_body_is_capped_too(tmp_path: Path) -> None:
    async def parts() -> Any:
        for _ in range(100):
            yield b"x" * 100
            await asyncio.sleep(0)

    async with gateway(tmp_path, ["http://127.0.0.1:9"], max_body_bytes=1000) as gw:
        async with gw.session.post(f"{gw.url}/chat/completions", data=parts()) as response:
            assert response.status == 413


async def test_a_bug_of_ours_is_a_500_without_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a secret of the code")

    async with gateway(tmp_path, ["http://127.0.0.1:9"]) as gw:
        monkeypatch.setattr("gateway.api.generate.targets", broken)
        async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
            assert response.status == 500
            body = await response.text()
            assert "secret" not in body
            assert '"code":"internal_error"' in body


async def test_models_are_listed_for_sdks(tmp_path: Path) -> None:
    async with gateway(tmp_path, ["http://127.0.0.1:9"]) as gw, gw.session.get(f"{gw.url}/models") as response:
        assert await response.json() == {
            "object": "list",
            "data": [{"id": "m", "object": "model", "created": 0, "owned_by": "prime-inference"}],
        }


async def test_metrics_are_on_the_internal_listener_only(tmp_path: Path) -> None:
    async with gateway(tmp_path, ["http://127.0.0.1:9"]) as gw:
        public = gw.url.removesuffix("/api/v1")
        for url, status in ((gw.internal_url, 200), (public, 404)):
            async with gw.session.get(f"{url}/metrics") as response:
                assert response.status == status
        async with gw.session.get(f"{public}/healthz") as response:
            assert response.status == 200


async def test_a_draining_replica_is_not_ready_and_asks_to_be_retried(tmp_path: Path) -> None:
    async with upstream(hangs()) as up, gateway(tmp_path, [up.url]) as gw:
        gw.state.draining.set()
        async with gw.session.get(f"{gw.internal_url}/readyz") as response:
            assert response.status == 503
        async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
            assert response.status == 503
            assert response.headers["x-should-retry"] == "true"


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nx-slow: "])
async def test_a_client_that_sends_its_headers_slowly_is_cut_off(tmp_path: Path, sent: bytes) -> None:
    async with gateway(tmp_path, ["http://127.0.0.1:9"], header_timeout_seconds=0.3) as gw:
        host, port = gw.url.removeprefix("http://").removesuffix("/api/v1").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        async with asyncio.timeout(3):
            assert await reader.read() == b""
        writer.close()


async def test_a_request_that_lasts_longer_than_headers_may_take_is_not_cut_off(tmp_path: Path) -> None:
    async with upstream(answers(b'{"choices":[{"finish_reason":"stop"}]}', pause_s=0.6)) as up:
        async with gateway(tmp_path, [up.url], header_timeout_seconds=0.2) as gw:
            for _ in range(2):
                async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
                    assert response.status == 200
                await asyncio.sleep(0.3)


@pytest.mark.parametrize("start", [b"GET /healthz HTTP/1.1\r\nx-large: ", b"GET /"])
async def test_headers_without_an_end_are_refused_before_they_fill_the_memory(tmp_path: Path, start: bytes) -> None:
    async with gateway(tmp_path, ["http://127.0.0.1:9"]) as gw:
        host, port = gw.url.removeprefix("http://").removesuffix("/api/v1").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(start + b"x" * MOST_HEAD_BYTES)
        async with asyncio.timeout(5):
            answer = await reader.read()
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 431 ")
        assert json.loads(body)["error"]["code"] == "headers_too_large"
