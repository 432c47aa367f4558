"""Fixtures captured on real nodes (`python -m prime_inference.health.capture`): the agent calls them healthy, and each
fault derived from them failed. What is derived is made here, and named so."""

from dataclasses import replace
from pathlib import Path

import pytest

from prime_inference.health.faults import State
from prime_inference.health.readings import Gpu
from prime_inference.health.sources.fixture import load
from tests.unit.health.node import Node, agent_of

FIXTURES = sorted((Path(__file__).parents[2] / "fixtures/health").glob("*.json"))

DERIVED_FAULTS = {
    "one GPU gone": lambda gpus: gpus[:-1],
    "an NVLink down": lambda gpus: (replace(gpus[0], links_active=(False, *gpus[0].links_active[1:])), *gpus[1:]),
    "an uncorrected error": lambda gpus: (
        replace(gpus[0], ecc_uncorrected=(gpus[0].ecc_uncorrected or 0) + 1),
        *gpus[1:],
    ),
    "a reset wanted": lambda gpus: (replace(gpus[0], recovery_action=1), *gpus[1:]),
}


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
@pytest.mark.parametrize("fault", DERIVED_FAULTS)
def test_a_captured_node_is_healthy_and_fails_with_each_derived_fault(path: Path, fault: str) -> None:
    snapshot, provenance = load(path)
    assert provenance["captured"] is True
    gpus: tuple[Gpu, ...] = snapshot.gpus or ()
    if not gpus or (fault == "an NVLink down" and not any(gpus[0].links_active)):
        pytest.skip(f"{path.stem} has no such part")
    node = Node(gpus, snapshot.ports or (), imex=snapshot.imex)
    agent = agent_of(node)
    for _ in range(3):
        node.at += 5
        agent.round()
    assert agent.state() is not State.FAILED, agent.faults.open
    node.gpu_list = DERIVED_FAULTS[fault](gpus)
    node.at += 5
    agent.round()
    assert agent.state() is State.FAILED
