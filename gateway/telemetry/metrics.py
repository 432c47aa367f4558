"""What the gateway counts. Label sets are closed: names of models and deployments come from the fleet file, the rest from
enums; nothing a client sends becomes a label. docs/metrics.md says what each means and what to do about it."""

from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from gateway.fleet.reload import ReloadResult
from gateway.telemetry.instruments import Counter, Gauge, Histogram

LATENCY_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
"""From a gateway's own overhead to the longest prefill."""

UNKNOWN_MODEL = "unknown"
"""The model label of requests that name no model of ours."""


@dataclass
class Metrics:
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        registry = self.registry
        self.requests = Counter(
            "prime_gateway_requests",
            "Requests answered, by endpoint, model and outcome.",
            ["endpoint", "model", "outcome"],
            registry=registry,
        )
        self.in_flight = Gauge(
            "prime_gateway_in_flight_requests", "Requests being answered now.", ["endpoint"], registry=registry
        )
        self.attempts = Counter(
            "prime_gateway_attempts",
            "Attempts at a deployment, by result: ok or the cause of failure.",
            ["deployment", "result"],
            registry=registry,
        )
        self.verdicts = Counter(
            "prime_gateway_breaker_verdicts",
            "What breakers said to attempts: closed, ramp and panic let them go.",
            ["deployment", "verdict"],
            registry=registry,
        )
        self.endings = Counter(
            "prime_gateway_attempt_endings",
            "How attempts ended, as their breaker hears it.",
            ["deployment", "ending"],
            registry=registry,
        )
        self.reloads = Counter(
            "prime_gateway_file_reloads",
            "Changes of the fleet or keys file, by result.",
            ["result"],
            registry=registry,
        )
        self.files_refused = Gauge(
            "prime_gateway_files_refused",
            "1 while the fleet or keys file on disk is wrong and the former ones rule.",
            registry=registry,
        )
        self.first_event = Histogram(
            "prime_gateway_first_event_seconds",
            "From a streamed request's arrival to its first event.",
            ["endpoint", "model"],
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.duration = Histogram(
            "prime_gateway_request_seconds",
            "From the request's arrival to the last byte sent.",
            ["endpoint", "model"],
            buckets=LATENCY_BUCKETS_S,
            registry=registry,
        )
        self.tokens = Counter(
            "prime_gateway_tokens",
            "Tokens used, by kind: prompt, cached (the part of prompt that was found), completion.",
            ["model", "kind"],
            registry=registry,
        )
        self.settle_lost = Counter(
            "prime_gateway_settle_records_lost",
            "Settle records that did not reach Valkey (they are in the log).",
            registry=registry,
        )

    def reloaded(self, result: ReloadResult) -> None:
        self.reloads.labels(result.value).inc()
        self.files_refused.set(result is ReloadResult.REFUSED)
