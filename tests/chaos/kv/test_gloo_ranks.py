"""Real ranks over gloo with injected misses, errors, stalls and deaths: no hang, and one prefix for all survivors."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from prime_inference.kv.sharding.agreement import LoadOutcome
from prime_inference.kv.sharding.broadcast import VERDICT_GRACE_S
from tests.chaos.kv.gloo_ranks import SCENARIOS, TIMEOUT_S, Scenario

pytestmark = pytest.mark.slow

RUN_TIMEOUT_S = 100
SLACK_S = 1.5
"""Scheduling of up to four ranks on two busy cores, not part of the promise."""

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}

Lines = dict[tuple[str, int], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def lines() -> Lines:
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos.kv.gloo_ranks"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=True,
    )
    by_load: Lines = defaultdict(list)
    for line in done.stdout.splitlines():
        result = json.loads(line)
        by_load[result["scenario"], result["load"]].append(result)
    return by_load


def expected(scenario: Scenario) -> tuple[int, LoadOutcome]:
    """From the scenario alone: a chunk is there if its owner reads it, and a rank that raises has none."""
    if scenario.dies_at or scenario.stalls:
        return 0, LoadOutcome.RANK_LOST
    if scenario.other_list:
        return 0, LoadOutcome.LISTS_DIFFER
    for chunk in range(scenario.chunks):
        if chunk in scenario.missing or chunk % scenario.world in scenario.raises:
            return chunk, LoadOutcome.SHORTENED
    return scenario.chunks, LoadOutcome.LOADED


@pytest.mark.parametrize("name", BY_NAME)
def test_survivors_agree_in_time_and_hold_the_prefix_they_agreed_on(lines: Lines, name: str) -> None:
    scenario = BY_NAME[name]
    results = lines[name, 1]
    # "two ranks die": the one that would die in its broadcast finds the group lost before it gets there.
    deaths = 1 if name == "two ranks die" else len(scenario.dies_at)
    assert len(results) == scenario.world - deaths
    chunks, outcome = expected(scenario)
    for result in results:
        limit_s = TIMEOUT_S + VERDICT_GRACE_S + SLACK_S + (TIMEOUT_S if result["rank"] in scenario.stalls else 0.0)
        assert result["took_s"] < limit_s
        if result["rank"] in scenario.raises:
            assert result["raised"] == "the tier is broken"
        else:
            assert (result["chunks"], result["outcome"]) == (chunks, outcome)
        assert all(result["right"][:chunks])


@pytest.mark.parametrize("name", BY_NAME)
def test_the_next_load_works_unless_a_rank_was_lost_and_then_all_know(lines: Lines, name: str) -> None:
    scenario = BY_NAME[name]
    lost = bool(scenario.dies_at or scenario.stalls)
    results = lines[name, 2]
    assert results
    for result in results:
        assert result["outcome"] == (LoadOutcome.GROUP_LOST if lost else LoadOutcome.LOADED)
        assert result["chunks"] == (0 if lost else scenario.chunks)
        assert all(result["right"][: result["chunks"]])
