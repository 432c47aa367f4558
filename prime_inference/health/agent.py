"""The node agent's loop: ask every source, judge, remember, tell. Everything it decides is decided in the pure modules."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from prime_inference.health import memory
from prime_inference.health.baselines import Baselines
from prime_inference.health.checks import Expected, findings_of
from prime_inference.health.deadline import Answer, Ending, Probe
from prime_inference.health.domain import NodeView
from prime_inference.health.faults import Event, Faults, State
from prime_inference.health.readings import Gpu, KernelLine, Port, Snapshot
from prime_inference.health.sources import Clock, GpuSource, ImexSource, KernelSource, PortSource
from prime_inference.health.verdicts import Check, Finding, Severity, Verdict

T = TypeVar("T")

log = logging.getLogger("prime_inference.health")

SLOWEST_ROUND_S = 30.0
"""A loop older than this is not alive: every probe has a deadline, so a round cannot take so long."""


@dataclass(frozen=True)
class Sources:
    gpus: GpuSource | None
    ports: PortSource
    kernel: KernelSource
    imex: ImexSource


@dataclass
class Agent:
    """One node's. `round()` is all of it; `run()` repeats it."""

    node: str
    sources: Sources
    clock: Clock
    deadline_s: float
    clear_after_s: float
    state_file: Path | None = None
    canary: Callable[[], tuple[Finding, ...]] | None = None
    """The last findings of the active checks, which run at a pace of their own."""
    told: list[Callable[["Agent", list[Event]], None]] = field(default_factory=list)
    """Called after each round, with what changed: the cordon, the log."""

    def __post_init__(self) -> None:
        self.baselines, self.expected, self.faults = self._remembered()
        self.findings: list[Finding] = []
        self.rounds = 0
        self.last_round_at: float | None = None
        self.probe_endings: dict[tuple[str, Ending], int] = {}
        self._last_errors: dict[str, str] = {}
        self.snapshot: Snapshot | None = None
        self.kubernetes_told: str | None = None
        """How the last telling ended (`out_of_rotation.Told`); None where Kubernetes is not told."""
        source = self.sources
        self._gpus: Probe[tuple[Gpu, ...]] | None = (
            Probe("nvml", source.gpus.gpus, self.deadline_s) if source.gpus is not None else None
        )
        self._ports: Probe[tuple[Port, ...]] = Probe("sysfs", source.ports.ports, self.deadline_s)
        self._kernel: Probe[tuple[KernelLine, ...]] = Probe("kmsg", source.kernel.lines, self.deadline_s)
        self._imex: Probe[str | None] = Probe("imex", source.imex.state, self.deadline_s)

    def _remembered(self) -> tuple[Baselines, Expected, Faults]:
        if self.state_file is not None and self.state_file.is_file():
            text = self.state_file.read_text(encoding="utf-8", errors="replace")
            remembered = memory.restore(text, self.clear_after_s)
            if remembered is not None:
                return remembered
            log.warning("the state file %s cannot be used: this node begins without a past", self.state_file)
        return Baselines(), Expected(), Faults(self.clear_after_s)

    def round(self) -> list[Event]:
        now = self.clock.now()
        probes: list[Finding] = []
        gpus = self._ask(self._gpus, probes) if self._gpus is not None else None
        ports = self._ask(self._ports, probes)
        kernel = self._ask(self._kernel, probes)
        # Where it never was ready nobody knows whether this node depends on it.
        imex = self._ask(self._imex, probes, Severity.FATAL if self.expected.imex else Severity.WARN)
        snapshot = Snapshot(now, self.sources.ports.boot_id(), gpus, ports, kernel, imex)
        rebooted = None not in (self.baselines.boot_id, snapshot.boot_id) and (
            self.baselines.boot_id != snapshot.boot_id
        )
        self.faults.begin(rebooted)
        judged = findings_of(snapshot, self.last_round_at, self.baselines, self.expected)
        self.findings = [*probes, *judged, *(self.canary() if self.canary is not None else ())]
        self.snapshot = snapshot
        events = self.faults.take(self.findings, now)
        self.rounds += 1
        self.last_round_at = now
        if self.state_file is not None:
            try:
                memory.write(self.state_file, memory.dump(self.baselines, self.expected, self.faults))
            except OSError as error:
                # A full disk: the node is watched on, only without a past for the next agent.
                log.warning("the state file %s cannot be written: %s", self.state_file, error)
        for event in events:
            log.warning("%s %s %s (%s) %s", event.change, event.check, event.entity, event.severity, event.detail)
        for tell in self.told:
            tell(self, events)
        return events

    def _ask(self, probe: Probe[T], findings: list[Finding], severity: Severity = Severity.FATAL) -> T | None:
        answer: Answer[T] = probe.ask()
        counted = (probe.name, answer.ending)
        self.probe_endings[counted] = self.probe_endings.get(counted, 0) + 1
        if answer.error != self._last_errors.get(probe.name, ""):
            log.warning("%s: %s", probe.name, answer.error or "answers again")
        self._last_errors[probe.name] = answer.error
        verdict = {Ending.ANSWERED: Verdict.OK, Ending.FAILED: Verdict.UNKNOWN, Ending.HUNG: Verdict.BAD}[answer.ending]
        # A failed source may be a node without that hardware; a hung one is a driver that does not return.
        findings.append(Finding(Check.PROBE, probe.name, verdict, answer.error, severity))
        return answer.value

    def state(self) -> State:
        return self.faults.state()

    def view(self) -> NodeView:
        gpus = self.snapshot.gpus if self.snapshot is not None and self.snapshot.gpus is not None else ()
        names = {f"{gpu.fabric.cluster_uuid}/{gpu.fabric.clique}" for gpu in gpus if gpu.fabric is not None}
        verdicts = {f.verdict for f in self.findings if f.check in (Check.FABRIC, Check.IMEX)}
        ok = False if Verdict.BAD in verdicts else True if verdicts == {Verdict.OK} else None
        return NodeView(self.node, self.state(), names.pop() if len(names) == 1 else None, ok)

    def alive(self) -> bool:
        return self.last_round_at is not None and self.clock.now() - self.last_round_at < SLOWEST_ROUND_S

    def run(self, interval_s: float, stop: threading.Event) -> None:
        while not stop.is_set():
            self.round()
            stop.wait(interval_s)
