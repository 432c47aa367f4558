"""Counters that only grow, read by something that restarts: how much did they grow since the last look? Pure.

Cases, each with a test: the first look ever (nothing is known, nothing is judged), an agent that restarted (what grew
meanwhile counts), a counter that was reset (it starts at zero again: what stands there grew), another boot (the same),
and a counter stuck at its largest value, which can no longer grow and hence no longer tell anything.
"""

from dataclasses import dataclass, field
from enum import StrEnum

SATURATION = {
    "link_downed": 0xFF,
    "link_error_recovery": 0xFF,
    "local_link_integrity_errors": 0xF,
    "excessive_buffer_overrun_errors": 0xF,
    "symbol_error": 0xFFFF,
    "port_rcv_errors": 0xFFFF,
    "port_rcv_remote_physical_errors": 0xFFFF,
    "port_xmit_discards": 0xFFFF,
    "VL15_dropped": 0xFFFF,
    "port_xmit_wait": 0xFFFFFFFF,
}
"""Widths of InfiniBand's classic counters (IBTA PortCounters): they stick there until somebody resets them. Seen on a
real node: link_downed=255 with port_xmit_discards=65535 (leptonai/gpud issue 943)."""


class Look(StrEnum):
    FIRST = "first"
    GREW = "grew"
    SAME = "same"
    SATURATED = "saturated"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Growth:
    look: Look
    by: int = 0


@dataclass
class Baselines:
    """The last value of each counter, of one boot. `entries` is what is kept on disk."""

    boot_id: str | None = None
    entries: dict[str, int] = field(default_factory=dict)

    def begin(self, boot_id: str | None) -> None:
        """A round of another boot: every counter of this node's hardware starts at zero again."""
        if boot_id is not None and boot_id != self.boot_id:
            if self.boot_id is not None:
                self.entries = dict.fromkeys(self.entries, 0)
            self.boot_id = boot_id

    def grow(self, name: str, value: int | None, *, saturates_at: int | None = None) -> Growth:
        """Take in a value; say how much it grew. An unreadable one changes nothing."""
        if value is None:
            return Growth(Look.UNKNOWN)
        before = self.entries.get(name)
        self.entries[name] = value
        if before is None:
            saturated = saturates_at is not None and value >= saturates_at
            return Growth(Look.SATURATED if saturated else Look.FIRST)
        by = value - before if value >= before else value
        if by:
            return Growth(Look.GREW, by)
        if saturates_at is not None and value >= saturates_at:
            return Growth(Look.SATURATED)
        return Growth(Look.SAME)
