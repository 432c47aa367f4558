"""The breaker's probe, and the probes that clear up a doubt, on real sockets."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from gateway.breaker import Ending
from gateway.guard.doubts import PAUSE_S
from gateway.guard.probe import Prober
from tests.gateway.test_relay import CHAT, DONE, STREAM, UNARY, chunk
from tests.support.gateway import RunningGateway, gateway
from tests.support.upstream import Script, answers, breaks, hangs, sends, upstream

USUAL = [chunk("a"), chunk("b", "length"), DONE]
ENDINGS: dict[str, tuple[Script, Ending]] = {
    "whole": (sends(*USUAL), Ending.SUCCEEDED),
    "dies in mid-stream": (breaks(chunk("a"), chunk("b")), Ending.TRUNCATED_STREAM),
    "ends without a finish reason": (sends(chunk("a")), Ending.TRUNCATED_STREAM),
    "fails in mid-stream": (
        sends(chunk("a"), b'data: {"error":{"message":"x","code":500}}\n\n'),
        Ending.UPSTREAM_ERROR,
    ),
    "busy within a stream": (sends(b'data: {"error":{"message":"x","code":529}}\n\n'), Ending.BUSY),
    "empty": (sends(), Ending.EMPTY_RESPONSE),
    "nothing but the end": (sends(DONE), Ending.EMPTY_RESPONSE),
    "no JSON": (sends(b"data: {\n\n"), Ending.UPSTREAM_ERROR),
    "no chunk": (sends(b'data: {"choices":"x"}\n\n'), Ending.UPSTREAM_ERROR),
    "500": (answers(b"{}", status=500), Ending.UPSTREAM_ERROR),
    "529": (answers(b"{}", status=529), Ending.BUSY),
    "400": (answers(b"{}", status=400), Ending.REQUEST_REJECTED),
}


def prober_of(gw: RunningGateway) -> Prober:
    return Prober(gw.state.upstream, lambda: gw.state.snapshot, gw.state.settings)


@pytest.mark.parametrize("name", ENDINGS)
async def test_a_probe_is_judged_by_its_whole_answer(tmp_path: Path, name: str) -> None:
    script, ending = ENDINGS[name]
    async with upstream(script) as up, gateway(tmp_path, [up.url]) as gw:
        assert await prober_of(gw).probe("d0") is ending
        assert up.requests[0]["headers"]["x-request-id"].startswith("probe-")


async def test_a_probe_of_a_deployment_that_has_left_settles_its_breaker(tmp_path: Path) -> None:
    async with gateway(tmp_path, ["http://127.0.0.1:9"]) as gw:
        assert await prober_of(gw).probe("gone") is Ending.SUCCEEDED
        assert await prober_of(gw).probe("d0") is Ending.CONNECT_FAILED


def serving(whole: bool) -> tuple[dict[str, Any], Script]:
    """Answers requests at once and hangs probes, or the other way round; the switch says whether both are answered."""
    switch: dict[str, Any] = {"well": False}

    async def script(request: Any) -> Any:
        is_probe = request.headers["x-request-id"].startswith("probe-")
        if switch["well"] or is_probe is whole:
            streams = json.loads(await request.text()).get("stream")
            return await (sends(*USUAL) if streams else answers(UNARY))(request)
        return await hangs()(request)

    return switch, script


async def post(gw: RunningGateway, body: dict[str, Any], patience_s: float) -> int:
    headers = {"x-stainless-read-timeout": str(patience_s)}
    async with gw.session.post(f"{gw.url}/chat/completions", json=body, headers=headers) as response:
        await response.read()
        return response.status


def endings(gw: RunningGateway, ending: Ending) -> float:
    return gw.metric("prime_gateway_attempt_endings_total", deployment="d0", ending=ending.value)


async def test_clients_in_a_hurry_open_no_breaker_of_a_deployment_that_passes_a_probe(tmp_path: Path) -> None:
    _, script = serving(whole=True)
    async with upstream(script) as up, gateway(tmp_path, [up.url]) as gw:
        began = time.monotonic()
        for _ in range(8):
            assert await post(gw, CHAT, 0.05) == 504
        await asyncio.sleep(0.2)
        probes = [each for each in up.requests if each["headers"]["x-request-id"].startswith("probe-")]
        assert 1 <= len(probes) <= 1 + (time.monotonic() - began) / PAUSE_S, "one a pause, however many are in a hurry"
        assert endings(gw, Ending.TOO_LITTLE_TIME) == 8
        assert gw.metric("prime_gateway_breaker_state", deployment="d0", state="closed") == 1


async def test_a_deployment_that_hangs_is_found_out_although_every_client_is_in_a_hurry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        upstream(hangs()) as bad,
        upstream(answers(UNARY)) as good,
        gateway(tmp_path, [bad.url, good.url]) as gw,
    ):
        monkeypatch.setattr(gw.state.guards.of("local").doubts, "_hold_s", 0.3)
        for _ in range(6):
            assert await post(gw, CHAT, 0.04) == 504
        assert good.requests == []
        async with asyncio.timeout(3):
            while not gw.metric("prime_gateway_breaker_state", deployment="d0", state="open"):
                await asyncio.sleep(0.02)
        assert await post(gw, CHAT, 5) == 200


async def test_a_short_answer_that_does_not_come_is_asked_of_the_next_deployment_in_its_clients_time(
    tmp_path: Path,
) -> None:
    quick = {"decode_tokens_per_second": 100}
    async with upstream(hangs()) as bad, upstream(answers(UNARY)) as good:
        async with gateway(tmp_path, [bad.url, good.url], deployment=quick, first_event_timeout_seconds=0.2) as gw:
            async with asyncio.timeout(5):
                assert await post(gw, {**CHAT, "max_tokens": 10}, 60) == 200
            assert endings(gw, Ending.FIRST_EVENT_TIMEOUT) == 1
            # Without a limit of the client's, an answer may take the time that its client gives it.
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await post(gw, CHAT, 60)


async def test_clients_that_leave_after_a_long_silence_raise_a_doubt_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.guard.ticket.LEFT_WAITING_S", 0.05)
    async with upstream(hangs()) as bad, gateway(tmp_path, [bad.url]) as gw:
        monkeypatch.setattr(gw.state.guards.of("local").doubts, "_hold_s", 0.3)

        async def leaves() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.15):
                    await post(gw, STREAM, 60)

        await asyncio.gather(*(leaves() for _ in range(6)))
        async with asyncio.timeout(3):
            while not gw.metric("prime_gateway_breaker_state", deployment="d0", state="open"):
                await asyncio.sleep(0.02)
