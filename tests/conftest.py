"""Fixtures of every folder."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.stack import Stack, running_stack

# How long an example takes on a shared machine says nothing of the code; benchmarks are for speed.
settings.register_profile("prime", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("prime")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that kill processes of a shared stack come last: what is before them meets a stack nobody has touched."""
    items.sort(key=lambda item: item.get_closest_marker("faults") is not None)


@pytest.fixture(scope="session")
def mocker_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The whole stack with Dynamo's mocker for engines: one prefill, two decode workers, up in seconds."""
    state = tmp_path_factory.mktemp("mocker") / "state"
    with running_stack(state, "--engine", "mocker", "--decode", "2", "--context-tokens", "512", within_s=120) as stack:
        yield stack


@pytest.fixture(scope="session")
def real_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The whole stack with vLLM: started once a run."""
    state = tmp_path_factory.mktemp("real") / "state"
    with running_stack(state, within_s=600) as stack:
        yield stack


def needs_on_ci(available: bool, what: str) -> None:
    """Skip with the reason for a user; fail in CI, which installs everything."""
    if not available:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{what} is missing in CI")
        pytest.skip(f"{what} is missing")
