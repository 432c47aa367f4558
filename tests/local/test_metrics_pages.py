"""Alerts and dashboards ask for what a running stack really shows."""

import re

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conftest import needs_on_ci
from tests.deploy.rendered import has_module
from tests.deploy.test_alerts import asked_for, bounds, rules
from tests.support.stack import Stack


def shown(url: str) -> set[str]:
    """Every sample's name, and what a histogram or counter would show once it has one."""
    names: set[str] = set()
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=10).text):
        endings = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}.get(family.type, [""])
        names |= {family.name + ending for ending in endings} | {sample.name for sample in family.samples}
    return names


@pytest.mark.parametrize(
    ("process", "prefix"), [("internal_url", "prime_gateway_"), ("frontend_url", "dynamo_frontend_")]
)
def test_every_name_that_is_asked_for_is_on_the_page_of_the_running_process(
    mocker_stack: Stack, process: str, prefix: str
) -> None:
    needs_on_ci(has_module("promql_parser"), "promql-parser")
    assert mocker_stack.answers()
    with mocker_stack.client() as client:
        body = {"model": mocker_stack.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
        client.post("/chat/completions", json=body | {"stream": True}).raise_for_status()
    wanted = {name for name in asked_for() if name.startswith(prefix)}
    assert len(wanted) >= 1
    assert wanted - shown(mocker_stack.running[process]) == set()
    page = httpx.get(f"{mocker_stack.running[process]}/metrics", timeout=10).text
    named = {bucket for bucket in bounds([rule["expr"] for rule in rules()]) if bucket[0].startswith(prefix)}
    assert len(named) == 1
    for name, bound in named:
        assert re.search(rf'^{name}\{{[^}}]*le="{re.escape(bound)}"', page, re.MULTILINE), "a bound that is not there"
