"""What the console shows, as plain JSON values: pure, of what the desk has gathered."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.admin.frontends import FrontendPage
from gateway.admin.leases import SiteLeases
from gateway.admin.window import Window
from gateway.breaker import Snapshot
from gateway.fleet.orders import Heard, ramp_left_ms
from gateway.fleet.registry import Deployment, Fleet, Model

TTFT = "dynamo_frontend_time_to_first_token_seconds"
ITL = "dynamo_frontend_inter_token_latency_seconds"
FIRST_EVENT = "prime_gateway_first_event_seconds"
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
NO_FAILURE = ("ok", "busy")
"""Results of an attempt that say nothing against its deployment; the alerts leave out the same."""
OUR_FAULT = ("upstream_error", "stream_error", "internal_error")


@dataclass(frozen=True)
class Here:
    """What this replica knows of a deployment without asking."""

    breaker: Snapshot
    requests: int
    tokens: int
    waiting: int
    scarce: bool


def times(window: Window, name: str, **labels: str) -> dict[str, float | None]:
    return {label: window.quantile(name, q, **labels) for label, q in QUANTILES.items()}


def model_view(model: Model, window: Window) -> dict[str, Any]:
    labels = {"model": model.name}
    prompt = window.increase("prime_gateway_tokens_total", **labels, kind="prompt")
    cached = window.increase("prime_gateway_tokens_total", **labels, kind="cached")
    calls = window.increase("prime_gateway_tool_calls_total", **labels)
    well = window.increase("prime_gateway_tool_calls_total", **labels, verdict="Ok")
    failed = sum(window.increase("prime_gateway_requests_total", **labels, outcome=each) for each in OUR_FAULT)
    return {
        "name": model.name,
        "deployments": [each.name for each in model.deployments],
        "requests_per_s": window.rate("prime_gateway_requests_total", **labels),
        "requests": window.increase("prime_gateway_requests_total", **labels),
        "failed": failed,
        "refused": window.increase("prime_gateway_requests_total", **labels, outcome="overloaded"),
        "first_event_s": times(window, FIRST_EVENT, **labels),
        "prompt_tokens": prompt,
        "hit_rate": cached / prompt if prompt > 0 else None,
        "completion_tokens_per_s": window.rate("prime_gateway_tokens_total", **labels, kind="completion"),
        "tool_calls": calls,
        "tool_calls_wrong": calls - well,
        "tool_faults": window.increase("prime_gateway_tool_faults_total", **labels),
    }


def deployment_view(
    deployment: Deployment,
    written: Deployment,
    heard: Heard,
    here: Here,
    held: SiteLeases | None,
    pages: Mapping[str, FrontendPage],
    window: Window,
) -> dict[str, Any]:
    order = heard.orders.order(deployment.name)
    fleet_wide = None if held is None else held.held.get(deployment.name, {})
    own = {"deployment": deployment.name}
    attempts = window.increase("prime_gateway_attempts_total", **own)
    fair = sum(window.increase("prime_gateway_attempts_total", **own, result=each) for each in NO_FAILURE)
    return {
        "name": deployment.name,
        "site": deployment.site,
        "region": deployment.region,
        "priority": deployment.priority,
        "weight": deployment.weight,
        "overflow": deployment.overflow,
        "draining": deployment.draining,
        "drained_by": [
            *(["file"] if written.draining else []),
            *(["order"] if order.draining else []),
            *(["site order"] if heard.orders.draining else []),
        ],
        "written": {"weight": written.weight, "overflow": written.overflow},
        "ordered": {"weight": order.weight, "overflow": order.overflow},
        "ramp_left_s": ramp_left_ms(order, heard.now_ms) / 1000,
        "breaker": {
            "state": here.breaker.state.value,
            "opens": here.breaker.opens,
            "probe_in_s": here.breaker.open_for_ms / 1000,
            "closed_for_s": here.breaker.closed_for_ms / 1000,
            "epoch": here.breaker.epoch,
        },
        "limit": {"requests": deployment.limit.requests, "tokens": deployment.limit.tokens},
        "held": None
        if fleet_wide is None
        else {
            "requests": sum(weight.requests for weight in fleet_wide.values()),
            "tokens": sum(weight.tokens for weight in fleet_wide.values()),
            "accounts": {name: weight.requests for name, weight in sorted(fleet_wide.items())},
        },
        "here": {
            "requests": here.requests,
            "tokens": here.tokens,
            "waiting": here.waiting,
            "scarce": here.scarce,
        },
        "attempts": attempts,
        "attempts_failed": attempts - fair,
        "ttft_s": times(window, TTFT, **own),
        "itl_s": times(window, ITL, **own),
        "frontends": [frontend_view(pages.get(url, FrontendPage(url))) for url in deployment.frontends],
    }


def frontend_view(page: FrontendPage) -> dict[str, Any]:
    return {
        "url": page.url,
        "answers": page.answers,
        "prefill": page.pools.prefill,
        "decode": page.pools.decode,
        "in_flight": page.total("dynamo_frontend_inflight_requests"),
        "queued": page.total("dynamo_frontend_queued_requests"),
    }


def sites_of(fleet: Fleet) -> list[str]:
    return sorted({deployment.site for deployment in fleet.deployments.values()})
