"""Tells Kubernetes what the agent found: a condition always, a taint within the budget (shell around `cordon`)."""

import logging
from enum import StrEnum

from prime_inference.health.agent import Agent
from prime_inference.health.cordon import FABRIC_FAULT, Budget, Decision, decide
from prime_inference.health.faults import Event, State
from prime_inference.health.kubernetes import Kubernetes, KubernetesError
from prime_inference.health.verdicts import Check, Severity

log = logging.getLogger("prime_inference.health")

HEARTBEAT_S = 60.0
"""The condition is written again this often, so that its age says whether the agent lives."""


SHARED = frozenset({Check.FABRIC, Check.IMEX})
"""Faults of the domain, seen from this node. A link that is down is the node's own: its peers' links stand."""


class Told(StrEnum):
    NOTHING_NEW = "nothing_new"
    WRITTEN = "written"
    OVER_BUDGET = "over_budget"
    UNREACHABLE = "unreachable"


class OutOfRotation:
    """Called after each round."""

    def __init__(self, kubernetes: Kubernetes, budget: Budget) -> None:
        self._kubernetes = kubernetes
        self._budget = budget
        self._written: tuple[bool, str] | None = None
        self._written_at = 0.0
        self._status: bool | None = None
        """The condition as it was last written; None before this agent's first word."""
        self._tainted: bool | None = None
        self.last = Told.NOTHING_NEW

    def __call__(self, agent: Agent, _events: list[Event]) -> None:
        now = agent.last_round_at or 0.0
        failed = agent.state() is State.FAILED
        reasons = ", ".join(f"{f.check}:{f.entity}" for f in agent.faults.open.values())
        try:
            shared = any(f.check in SHARED for f in agent.faults.open.values() if f.severity is Severity.FATAL)
            self.last = self._tell(agent.node, failed, FABRIC_FAULT if shared else "Faults", reasons, now)
        except KubernetesError as error:
            # The next round tries again: state is level, not edge.
            self.last, self._written = Told.UNREACHABLE, None
            log.warning("cannot tell Kubernetes: %s", error)
        if self.last is not Told.NOTHING_NEW:
            agent.kubernetes_told = self.last.value

    def _tell(self, node: str, failed: bool, reason: str, reasons: str, now: float) -> Told:
        said = (not failed, reasons)
        if said == self._written and self._tainted == failed and now - self._written_at < HEARTBEAT_S:
            return Told.NOTHING_NEW
        changed = self._status is not failed
        self._kubernetes.set_condition(node, not failed, reason if failed else "Healthy", reasons, now, changed)
        self._status = failed
        self._written, self._written_at = said, now
        decision = decide(node, failed, self._kubernetes.cluster(), self._budget)
        if decision is Decision.CORDON:
            self._kubernetes.set_taint(node, now)
            # Others may have done the same in this moment.
            decision = decide(node, failed, self._kubernetes.cluster(), self._budget)
        if decision in (Decision.UNCORDON, Decision.GIVE_WAY):
            self._kubernetes.set_taint(node, None)
        if decision in (Decision.OVER_BUDGET, Decision.GIVE_WAY):
            log.error("this node should be cordoned (%s), but the budget for cordons is spent", reasons)
            self._tainted = False
            return Told.OVER_BUDGET
        self._tainted = failed
        return Told.WRITTEN
