"""The whole agent on a node that does what it is told."""

import sys
import threading
from pathlib import Path

import pytest

from prime_inference.health.agent import Agent
from prime_inference.health.checks import FABRIC_JOINS_WITHIN_S
from prime_inference.health.deadline import Ending, Probe
from prime_inference.health.faults import Change, State
from prime_inference.health.page import metrics_of, node_of
from prime_inference.health.sources.imex import ImexHung
from prime_inference.health.verdicts import Check, Finding, Severity, Verdict
from tests.unit.health.node import Node, agent_of, fabric, gpu, port


def rounds(agent: Agent, node: Node, times: int = 1, every: float = 5.0) -> list[tuple[Change, Check]]:
    changes = []
    for _ in range(times):
        node.at += every
        changes += [(event.change, event.check) for event in agent.round()]
    return changes


def test_a_healthy_node_says_so() -> None:
    node = Node((gpu(0), gpu(1)), (port(),))
    agent = agent_of(node)
    assert rounds(agent, node, 3) == []
    assert agent.state() is State.HEALTHY


def test_the_page_tells_the_time_of_the_last_round_to_the_second() -> None:
    """Six digits of it would be hours off, and an alert subtracts it from the time."""
    node = Node((), (port(),))
    node.at = 1796042423.25
    agent = agent_of(node)
    agent.round()
    assert 'prime_health_last_round_timestamp_seconds{node="node-a"} 1796042423.25' in metrics_of(agent)


def test_a_port_that_goes_down_is_a_fault_in_the_next_round_and_ends_after_a_quiet_while() -> None:
    node = Node((), (port(),))
    agent = agent_of(node)
    rounds(agent, node)
    node.port_list = (port("DOWN", link_downed=1),)
    assert rounds(agent, node) == [(Change.OPENED, Check.IB_PORT), (Change.OPENED, Check.IB_COUNTER)]
    assert agent.state() is State.FAILED
    node.port_list = (port(link_downed=1),)
    assert rounds(agent, node, 12) == []
    assert rounds(agent, node) == [(Change.CLEARED, Check.IB_PORT), (Change.CLEARED, Check.IB_COUNTER)]
    assert agent.state() is State.HEALTHY


def test_a_port_that_never_had_a_cable_is_no_fault() -> None:
    node = Node((), (port("DOWN"),))
    agent = agent_of(node)
    assert rounds(agent, node, 3) == []


def test_a_card_that_vanishes_is_a_fault() -> None:
    node = Node((), (port(),))
    agent = agent_of(node)
    rounds(agent, node)
    node.port_list = ()
    assert rounds(agent, node) == [(Change.OPENED, Check.IB_PORT)]


def test_unknown_neither_opens_nor_heals() -> None:
    node = Node((), (port(),))
    agent = agent_of(node)
    rounds(agent, node)
    node.port_list = (port(None, link_downed=None),)
    assert rounds(agent, node, 3) == []
    node.port_list = (port("DOWN"),)
    rounds(agent, node)
    node.port_list = (port(None),)
    rounds(agent, node, 50)
    assert agent.state() is State.FAILED


def test_a_link_that_returns_each_time_is_flapping_and_stays_out() -> None:
    node = Node((), (port(),))
    agent = agent_of(node, clear_after_s=10)
    rounds(agent, node)
    changes = []
    for _ in range(3):
        node.port_list = (port("DOWN"),)
        changes += rounds(agent, node)
        node.port_list = (port(),)
        changes += rounds(agent, node, 4)
    assert changes.count((Change.FLAPPING, Check.IB_FLAP)) == 1
    assert agent.state() is State.FAILED
    assert (Change.CLEARED, Check.IB_FLAP) in rounds(agent, node, 2, every=3600)


def test_nvlinks_are_judged_by_what_the_node_had() -> None:
    node = Node((gpu(0, links_active=(True,) * 17 + (False,)),))
    agent = agent_of(node)
    assert rounds(agent, node) == []
    node.gpu_list = (gpu(0, links_active=(True,) * 16 + (False,) * 2),)
    assert rounds(agent, node) == [(Change.OPENED, Check.NVLINK_DOWN)]


def test_a_lost_gpu_is_a_fault() -> None:
    node = Node((gpu(0), gpu(1)))
    agent = agent_of(node)
    rounds(agent, node)
    node.gpu_list = (gpu(0),)
    assert rounds(agent, node) == [(Change.OPENED, Check.GPU_COUNT)]


@pytest.mark.parametrize(
    ("change", "check"),
    [
        ({"ecc_uncorrected": 1}, Check.ECC_UNCORRECTED),
        ({"remap_failed": True}, Check.ROW_REMAP),
        ({"recovery_action": 2}, Check.RECOVERY_ACTION),
        ({"link_errors": {"recovery": 1}}, Check.NVLINK_ERRORS),
        ({"fabric": fabric(summary=2)}, Check.FABRIC),
        ({"fabric": fabric(status=9)}, Check.FABRIC),
    ],
)
def test_each_gpu_fault_fails_the_node(change: dict[str, object], check: Check) -> None:
    node = Node((gpu(0, fabric=fabric()),))
    agent = agent_of(node)
    rounds(agent, node)
    node.gpu_list = (gpu(0, **{"fabric": fabric(), **change}),)
    assert rounds(agent, node) == [(Change.OPENED, check)]
    assert agent.state() is State.FAILED


def test_a_fabric_that_is_still_starting_is_unknown() -> None:
    node = Node((gpu(0, fabric=fabric(state=2, status=0, summary=0)),))
    agent = agent_of(node)
    assert rounds(agent, node, 3) == []
    assert agent.view().fabric_ok is None
    assert rounds(agent, node, 300) == [], "it was never in a domain"


def test_a_gpu_that_does_not_come_back_into_its_domain_fails_its_node_alone(tmp_path: Path) -> None:
    node = Node((gpu(0, fabric=fabric()),))
    rounds(agent_of(node, state_file=tmp_path / "state.json"), node)
    # A reboot, after which the driver never ends joining.
    node.boot = "boot-2"
    node.gpu_list = (gpu(0, fabric=fabric(state=2, status=0, summary=0)),)
    agent = agent_of(node, state_file=tmp_path / "state.json")
    began = node.at
    while agent.state() is not State.FAILED:
        rounds(agent, node)
        assert node.at - began < 2 * FABRIC_JOINS_WITHIN_S
    assert node.at - began > FABRIC_JOINS_WITHIN_S
    assert [fault.check for fault in agent.faults.open.values()] == [Check.FABRIC_JOIN]
    assert agent.view().fabric_ok is None, "its peers serve on"
    node.gpu_list = (gpu(0, fabric=fabric()),)
    rounds(agent, node, 100)
    assert agent.state() is State.HEALTHY


def test_the_same_xid_a_hundred_thousand_times_is_one_fault_that_outlives_silence() -> None:
    node = Node()
    agent = agent_of(node)
    node.new_lines = ["NVRM: Xid (PCI:0000:1b:00): 79, pid=0, GPU has fallen off the bus."] * 100_000
    assert rounds(agent, node) == [(Change.OPENED, Check.XID)]
    assert rounds(agent, node, 100) == []
    assert agent.state() is State.FAILED
    node.boot = "boot-2"
    rounds(agent, node)
    assert agent.state() is State.HEALTHY


def test_an_applications_own_xid_is_told_and_ends() -> None:
    node = Node()
    agent = agent_of(node)
    node.new_lines = ["NVRM: Xid (PCI:0000:1b:00): 13, Graphics Exception"]
    assert rounds(agent, node) == [(Change.OPENED, Check.XID)]
    assert agent.state() is State.DEGRADED
    assert rounds(agent, node, 20) == [(Change.CLEARED, Check.XID)]


def test_a_driver_that_does_not_return_is_a_fault_and_the_rest_is_still_judged() -> None:
    node = Node((gpu(0),), (port(),))
    agent = agent_of(node, deadline_s=0.5)
    rounds(agent, node)
    node.hang = threading.Event()
    node.port_list = (port("DOWN"),)
    changes = rounds(agent, node, 2)
    assert (Change.OPENED, Check.PROBE) in changes
    assert (Change.OPENED, Check.IB_PORT) in changes
    assert agent.probe_endings["nvml", Ending.HUNG] == 2
    node.hang.set()


def test_a_domain_service_that_was_never_ready_here_is_no_fault(tmp_path: Path) -> None:
    """On GB200 IMEX runs in a pod of NVIDIA's, and the host's is masked: who asks the host hears an error for ever."""
    node = Node((gpu(0, fabric=fabric()),), imex="exit 1")
    agent = agent_of(node, state_file=tmp_path / "state.json")
    assert rounds(agent, node, 3) == []
    node.imex = "READY"
    rounds(agent, node)
    again = agent_of(node, state_file=tmp_path / "state.json")
    node.imex = "INITIALIZING"
    assert rounds(again, node) == [(Change.OPENED, Check.IMEX)]
    assert again.state() is State.FAILED


def test_a_domain_service_that_does_not_answer_is_a_fault_where_it_once_was_ready(tmp_path: Path) -> None:
    node = Node((gpu(0),))
    agent = agent_of(node)
    node.imex_error = ImexHung("does not end")
    assert rounds(agent, node) == [(Change.OPENED, Check.PROBE)]
    assert (agent.state(), agent.probe_endings["imex", Ending.HUNG]) == (State.DEGRADED, 1)
    node.imex, node.imex_error = "READY", None
    rounds(agent, node)
    node.imex_error = ImexHung("does not end")
    rounds(agent, node)
    assert agent.state() is State.FAILED


def test_what_a_source_refuses_with_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(imex_error=PermissionError("not allowed"))
    agent = agent_of(node)
    rounds(agent, node, 3)
    node.imex_error = None
    rounds(agent, node, 2)
    assert caplog.messages == ["imex: PermissionError: not allowed", "imex: answers again"]


def test_a_kernel_line_that_comes_after_the_deadline_is_not_lost() -> None:
    hang = threading.Event()
    probe = Probe("kmsg", lambda: (hang.wait(10), "line")[1], 0.05)
    assert probe.ask().ending is Ending.HUNG
    hang.set()
    while (answer := probe.ask()).ending is Ending.HUNG:
        pass
    assert answer.value == "line"


def test_saturated_counters_are_told_but_take_no_node_out() -> None:
    node = Node((), (port(link_downed=255, port_xmit_discards=65535),))
    agent = agent_of(node)
    rounds(agent, node, 2)
    assert agent.state() is State.DEGRADED
    assert agent.faults.open[Check.IB_SATURATED, "mlx5_0/1"].severity is Severity.WARN
    blind = [f for f in agent.findings if f.check is Check.IB_COUNTER]
    assert {f.verdict for f in blind} == {Verdict.UNKNOWN}


def test_faults_and_baselines_outlive_the_agent(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    node = Node((), (port(),))
    agent = agent_of(node, state_file=file)
    rounds(agent, node)
    node.port_list = (port("DOWN", link_downed=1),)
    rounds(agent, node)
    again = agent_of(node, state_file=file)
    assert again.state() is State.FAILED
    assert rounds(again, node) == []
    file.write_text('{"schema": 1, "torn')
    assert agent_of(node, state_file=file).state() is State.HEALTHY


def test_a_state_file_that_is_no_text_or_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_bytes(b"\xff\xfe")
    node = Node((), (port(),))
    agent = agent_of(node, state_file=file)
    rounds(agent, node)
    file.unlink()
    (file.with_suffix(".new")).mkdir()
    node.port_list = (port("DOWN"),)
    assert rounds(agent, node) == [(Change.OPENED, Check.IB_PORT)]


def test_the_page_is_read_whole_while_faults_open_and_close() -> None:
    """The page answers from a thread of its own, in the middle of a round."""
    agent = agent_of(Node(), clear_after_s=0)
    rounds(agent, Node())
    few, many = ([Finding(Check.XID, f"gpu{n}", v) for n in range(300)] for v in (Verdict.OK, Verdict.BAD))
    steady = Finding(Check.IB_PORT, "mlx5_0/1", Verdict.BAD)
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            agent.faults.take([*many, steady], 1.0)
            agent.faults.begin(rebooted=True)
            agent.faults.take([*few, steady], 2.0)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(200):
            metrics_of(agent)
            node_of(agent)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
