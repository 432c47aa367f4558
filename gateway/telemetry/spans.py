"""OpenTelemetry spans, one a request, by the semantic conventions for generative AI. No prompt, no answer, no key.

Off unless `otlp_endpoint` is set: then this module is the only one that imports OpenTelemetry (the extra `otel`). A span
begins with the request, under the client's own if it sent a `traceparent`; the engines get ours in theirs, and nothing else
of the client's trace headers. It ends with the settle record, which says everything it tells. Spans leave in batches from a
thread; a collector that is slow or away costs the spans, never a request.
"""

from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.api.request import Endpoint
from gateway.metering.settle import Outcome, SettleRecord

TRACEPARENT = "traceparent"
SERVICE = "prime-inference-gateway"
PROVIDER = "prime_inference"
"""None of the conventions' well-known providers: a custom value is theirs to allow."""

EXPORT_TIMEOUT_S = 5.0

_OPERATIONS = {Endpoint.COMPLETIONS.value: "text_completion"}
"""The others are chats in another dialect."""

_propagator = TraceContextTextMapPropagator()


class Tracing:
    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("gateway")

    @classmethod
    def exporting_to(cls, endpoint: str, ratio: float) -> "Tracing":
        """`endpoint` is the whole URL for traces; `ratio` the share of requests that no client's trace decides on."""
        provider = TracerProvider(
            resource=Resource.create({"service.name": SERVICE}), sampler=ParentBasedTraceIdRatio(ratio)
        )
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_TIMEOUT_S)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        return cls(provider)

    def begin(self, endpoint: str, headers: Mapping[str, str]) -> "RequestSpan":
        carrier = {TRACEPARENT: headers[TRACEPARENT]} if TRACEPARENT in headers else {}
        operation = _OPERATIONS.get(endpoint, "chat")
        span = self._tracer.start_span(
            operation,
            context=_propagator.extract(carrier),
            kind=SpanKind.SERVER,
            attributes={"gen_ai.operation.name": operation, "gen_ai.provider.name": PROVIDER},
        )
        return RequestSpan(span, operation)

    def close(self) -> None:
        """Sends what is left; takes as long as the collector does, so not to be called in the event loop."""
        self._provider.shutdown()


class RequestSpan:
    def __init__(self, span: Span, operation: str) -> None:
        self._span = span
        self._operation = operation

    @property
    def headers(self) -> dict[str, str]:
        """For the engines."""
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, set_span_in_context(self._span))
        return {TRACEPARENT: carrier[TRACEPARENT]} if TRACEPARENT in carrier else {}

    def asked(self, stream: bool, most_tokens: int | None) -> None:
        self._span.set_attribute("prime.request.stream", stream)
        if most_tokens is not None:
            self._span.set_attribute("gen_ai.request.max_tokens", most_tokens)

    def end(self, record: SettleRecord) -> None:
        span = self._span
        if span.is_recording():
            span.update_name(f"{self._operation} {record.model}")
            span.set_attributes(
                {
                    "gen_ai.request.model": record.model,
                    "gen_ai.conversation.id": record.session,
                    "prime.endpoint": record.endpoint,
                    "prime.request.id": record.request_id,
                    "prime.tenant": record.tenant,
                    "prime.deployment": record.deployment,
                    "prime.attempts": record.attempts,
                    "prime.outcome": record.outcome.value,
                }
            )
            if record.usage_known:
                span.set_attribute("gen_ai.usage.input_tokens", record.prompt_tokens)
                span.set_attribute("gen_ai.usage.output_tokens", record.completion_tokens)
                span.set_attribute("gen_ai.usage.cache_read.input_tokens", record.cached_tokens)
            if record.first_event_seconds is not None:
                span.set_attribute("prime.first_event_seconds", record.first_event_seconds)
            if record.outcome is not Outcome.OK:
                span.set_attribute("error.type", record.outcome.value)
                span.set_status(Status(StatusCode.ERROR))
        span.end()
