"""From findings to faults: sticky, de-duplicated, flap-aware. Pure.

A fault opens at the first bad verdict and ends only after its check was good, without a break, for `clear_after_s`.
Unknown does neither. Events that have no good verdict of their own (a kernel line, a counter that grew) end the same
way: by not happening again for that long. Three openings of one check within the flap window make a flap, which stays
until it has been quiet for the whole window.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from prime_inference.health.verdicts import Check, Finding, Severity, Verdict

FLAP_WINDOW_S = 3600.0
FLAPS = 3
"""Three outages in an hour (NVSentinel's escalation): a link that returns each time is no link."""

EVENT_CHECKS = frozenset({Check.XID, Check.NIC_FATAL})
"""Reported when they happen, never as good."""

STAYS_UNTIL_REBOOT = frozenset({Check.XID, Check.ROW_REMAP, Check.NIC_FATAL})
"""A fatal one of these is not undone by silence: a GPU that fell off the bus is silent."""


class State(StrEnum):
    """A node's, in order of trouble."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    FAILED = "failed"


class Change(StrEnum):
    OPENED = "opened"
    CLEARED = "cleared"
    FLAPPING = "flapping"


@dataclass
class Fault:
    check: Check
    entity: str
    severity: Severity
    detail: str
    opened_at: float
    last_bad_at: float
    good_since: float | None = None
    times: int = 1


@dataclass(frozen=True)
class Event:
    at: float
    change: Change
    check: Check
    entity: str
    severity: Severity
    detail: str


@dataclass
class Faults:
    """Open faults of one node, of one boot."""

    clear_after_s: float
    open: dict[tuple[Check, str], Fault] = field(default_factory=dict)
    openings: dict[tuple[Check, str], list[float]] = field(default_factory=dict)

    def begin(self, rebooted: bool) -> None:
        """After a reboot nothing that needed one is open any more; what is still broken says so at once."""
        if rebooted:
            self.open.clear()

    def take(self, findings: list[Finding], now: float) -> list[Event]:
        """Take in a round; return what changed."""
        events: list[Event] = []
        mentioned = set()
        for finding in findings:
            mentioned.add(finding.key)
            if finding.verdict is Verdict.BAD:
                events += self._bad(finding, now)
            elif finding.verdict is Verdict.OK:
                self._good(finding.key, now)
            elif fault := self.open.get(finding.key):
                fault.good_since = None
        for key, fault in self.open.items():
            if key not in mentioned and fault.check in EVENT_CHECKS:
                self._good(key, now)
            elif key not in mentioned and fault.check is not Check.IB_FLAP:
                # Its source says nothing: unknown.
                fault.good_since = None
        return events + self._cleared(now)

    def now_open(self) -> list[Fault]:
        """For threads other than the one that takes findings: a copy made in one step."""
        return list(self.open.values())

    def state(self) -> State:
        faults = self.now_open()
        if any(fault.severity is Severity.FATAL for fault in faults):
            return State.FAILED
        return State.DEGRADED if faults else State.HEALTHY

    def _bad(self, finding: Finding, now: float) -> list[Event]:
        fault = self.open.get(finding.key)
        if fault is None or fault.good_since is not None:
            recent = [at for at in self.openings.get(finding.key, []) if now - at < FLAP_WINDOW_S]
            self.openings[finding.key] = [*recent, now]
        if fault is not None:
            fault.last_bad_at, fault.good_since, fault.detail = now, None, finding.detail
            fault.times += 1
            if finding.severity is Severity.FATAL:
                fault.severity = Severity.FATAL
            return self._flapping(finding, now)
        self.open[finding.key] = Fault(finding.check, finding.entity, finding.severity, finding.detail, now, now)
        opened = Event(now, Change.OPENED, finding.check, finding.entity, finding.severity, finding.detail)
        return [opened, *self._flapping(finding, now)]

    def _flapping(self, finding: Finding, now: float) -> list[Event]:
        times = self.openings.get(finding.key, [])
        if finding.check not in (Check.IB_PORT, Check.NVLINK_DOWN) or len(times) < FLAPS:
            return []
        key = (Check.IB_FLAP, finding.entity)
        detail = f"{len(times)} outages in {FLAP_WINDOW_S / 60:.0f} minutes"
        if flap := self.open.get(key):
            flap.last_bad_at, flap.detail = now, detail
            return []
        self.open[key] = Fault(Check.IB_FLAP, finding.entity, Severity.FATAL, detail, now, now)
        return [Event(now, Change.FLAPPING, Check.IB_FLAP, finding.entity, Severity.FATAL, detail)]

    def _good(self, key: tuple[Check, str], now: float) -> None:
        fault = self.open.get(key)
        if fault is not None and fault.good_since is None:
            fault.good_since = now

    def _cleared(self, now: float) -> list[Event]:
        events = []
        for key, fault in list(self.open.items()):
            if fault.check in STAYS_UNTIL_REBOOT and fault.severity is Severity.FATAL:
                continue
            if fault.check is Check.IB_FLAP:
                over = now - fault.last_bad_at >= FLAP_WINDOW_S
            else:
                over = fault.good_since is not None and now - fault.good_since >= self.clear_after_s
            if over:
                del self.open[key]
                events.append(Event(now, Change.CLEARED, fault.check, fault.entity, fault.severity, fault.detail))
        return events
