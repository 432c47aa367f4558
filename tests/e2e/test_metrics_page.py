"""What alerts, dashboards and runbooks ask of workers is on the page of a worker that has served."""

import pytest

from tests.conftest import needs_on_ci
from tests.deploy.rendered import has_module
from tests.deploy.runbook import queries
from tests.deploy.test_alerts import asked_for, metric_names
from tests.local.test_metrics_pages import shown
from tests.support.stack import Stack

pytestmark = [pytest.mark.e2e]


def test_every_name_that_is_asked_of_workers_is_on_their_pages(real_stack: Stack) -> None:
    needs_on_ci(has_module("promql_parser"), "promql-parser")
    assert real_stack.answers()
    wanted = asked_for() | {name for query in queries() for name in metric_names(query)}
    wanted = {name for name in wanted if name.startswith("vllm:")}
    assert len(wanted) >= 7
    for worker, url in real_stack.running["worker_urls"].items():
        assert wanted - shown(url) == set(), worker
