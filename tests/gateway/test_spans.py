"""Spans of requests: their conventions, what goes upstream, what never does, and that they cost nothing when off."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from gateway.settings import GatewaySettings
from gateway.telemetry.spans import Tracing
from tests.gateway.test_relay import CHAT, STREAM, UNARY, WHOLE
from tests.gateway.test_typed_streams import BODIES, MESSAGE_STREAM
from tests.support.gateway import RunningGateway, gateway
from tests.support.upstream import Script, Upstream, answers, sends, upstream

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SENT = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=secret", "baggage": "user=secret"}


@asynccontextmanager
async def traced(
    folder: Path, script: Script, **options: Any
) -> AsyncIterator[tuple[RunningGateway, Upstream, InMemorySpanExporter]]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with upstream(script) as up, gateway(folder, [up.url], **options) as gw:
        gw.state.tracing = Tracing(provider)
        yield gw, up, exporter


async def post(gw: RunningGateway, body: dict[str, Any], path: str = "chat/completions", **headers: str) -> int:
    async with gw.session.post(f"{gw.url}/{path}", json=body, headers=headers) as response:
        await response.read()
        return response.status


async def one_span(exporter: InMemorySpanExporter) -> ReadableSpan:
    async with asyncio.timeout(3):
        while not exporter.get_finished_spans():
            await asyncio.sleep(0.01)
    (span,) = exporter.get_finished_spans()
    return span


@pytest.mark.parametrize(
    ("path", "body", "script", "operation"),
    [
        ("chat/completions", {**CHAT, "max_tokens": 7}, answers(UNARY), "chat"),
        ("chat/completions", {**STREAM, "max_tokens": 7}, sends(*WHOLE), "chat"),
        ("completions", {"model": "m", "prompt": "hi", "stream": True, "max_tokens": 7}, sends(*WHOLE), "text_completion"),
        ("messages", {**BODIES["messages"], "max_tokens": 7}, sends(*MESSAGE_STREAM), "chat"),
    ],
)  # fmt: skip
async def test_a_request_is_one_span_by_the_conventions(
    tmp_path: Path, path: str, body: dict[str, Any], script: Script, operation: str
) -> None:
    async with traced(tmp_path, script) as (gw, up, exporter):
        assert await post(gw, body, path, **SENT) == 200
        span = await one_span(exporter)
    assert (span.name, span.kind) == (f"{operation} m", SpanKind.SERVER)
    attributes = dict(span.attributes or {})
    assert attributes["gen_ai.operation.name"] == operation
    assert attributes["gen_ai.request.model"] == "m"
    assert attributes["gen_ai.request.max_tokens"] == 7
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (7, 2)
    assert attributes["prime.deployment"] == "d0"
    assert attributes["prime.outcome"] == "ok"
    assert span.status.status_code is StatusCode.UNSET
    known = {getattr(gen_ai_attributes, name) for name in dir(gen_ai_attributes) if name.startswith("GEN_AI_")}
    assert {name for name in attributes if name.startswith("gen_ai.")} <= known
    # Under the client's span, and the engine's under ours.
    assert span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    sent = up.requests[0]["headers"]
    assert sent["traceparent"] == f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert not {"tracestate", "baggage"} & set(sent)


@pytest.mark.parametrize("given", ["", "x", f"00-{TRACE}-{PARENT}", "00-" + "0" * 32 + f"-{PARENT}-01", "é"])
async def test_a_traceparent_that_is_none_is_left_out(tmp_path: Path, given: str) -> None:
    async with traced(tmp_path, answers(UNARY)) as (gw, up, exporter):
        assert await post(gw, CHAT, traceparent=given) == 200
        span = await one_span(exporter)
    assert span.parent is None
    assert up.requests[0]["headers"]["traceparent"].startswith(f"00-{span.context.trace_id:032x}-")


async def test_what_fails_says_so_by_a_closed_word(tmp_path: Path) -> None:
    async with traced(tmp_path, answers(b"{}", status=500)) as (gw, _, exporter):
        assert await post(gw, CHAT) == 502
        span = await one_span(exporter)
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is None
    assert dict(span.attributes or {})["error.type"] == "upstream_error"
    assert span.events == ()


async def test_a_span_of_an_unknown_key_names_nobody_and_no_made_up_model(tmp_path: Path) -> None:
    async with traced(tmp_path, answers(UNARY)) as (gw, _, exporter):
        assert await post(gw, {**CHAT, "model": "made-up"}, authorization="Bearer sk-wrong") == 401
        span = await one_span(exporter)
    assert span.name == "chat unknown"
    assert "made-up" not in span.to_json()


async def test_without_a_collector_nothing_goes_upstream_and_nothing_of_it_is_loaded(tmp_path: Path) -> None:
    async with upstream(answers(UNARY)) as up, gateway(tmp_path, [up.url]) as gw:
        assert await post(gw, CHAT, **SENT) == 200
        assert not {"traceparent", "tracestate", "baggage"} & set(up.requests[0]["headers"])
    # redis-py loads OpenTelemetry's own modules where they are installed; what is ours to leave alone is spans.py.
    code = "import sys, gateway.server; sys.exit('gateway.telemetry.spans' in sys.modules)"
    result = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], timeout=60, check=False)
    assert result.returncode == 0


async def test_spans_reach_a_collector_by_otlp_before_the_process_ends(tmp_path: Path) -> None:
    got: list[ExportTraceServiceRequest] = []

    async def collect(request: web.Request) -> web.Response:
        got.append(ExportTraceServiceRequest.FromString(await request.read()))
        return web.Response(body=b"")

    app = web.Application()
    app.router.add_post("/v1/traces", collect)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"
    try:
        async with upstream(answers(UNARY)) as up, gateway(tmp_path, [up.url], otlp_endpoint=url) as gw:
            assert await post(gw, CHAT) == 200
        (resource,) = got[0].resource_spans
        (span,) = resource.scope_spans[0].spans
        assert span.name == "chat m"
        names = {each.key: each.value.string_value for each in resource.resource.attributes}
        assert names["service.name"] == "prime-inference-gateway"
    finally:
        await runner.cleanup()


def test_an_endpoint_and_a_ratio_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"fleet_file": "f", "keys_file": "k", "secret": "s"}
    with pytest.raises(ValueError, match="trace_ratio"):
        GatewaySettings.model_validate({**values, "trace_ratio": 2})
    monkeypatch.setattr("gateway.settings.find_spec", lambda _: None)
    GatewaySettings.model_validate(values)
    with pytest.raises(ValueError, match="extra `otel`"):
        GatewaySettings.model_validate({**values, "otlp_endpoint": "http://x"})
