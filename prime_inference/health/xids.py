"""NVIDIA's Xid messages in the kernel log: which GPU, which number, how bad. Pure.

NVML's own last-Xid gauge keeps one number, never resets and hides repeats (NVIDIA/dcgm-exporter issue 500), so the
kernel log is what counts.
"""

import re
from dataclasses import dataclass

from prime_inference.health.verdicts import Severity

FATAL = frozenset({46, 48, 62, 63, 64, 74, 79, 92, 95, 109, 119, 120, 121, 136, 140, 143, 149, 154, 155, 156, 158})
"""Faults of the GPU, its memory, its links or its firmware, after which its work cannot be trusted or does not end.
From NVIDIA's Xid catalogue; 154 is the driver naming a recovery action."""

APPLICATION = frozenset({13, 31, 43, 45, 68, 69, 94, 137})
"""Mostly a program's own fault (94: an error contained to one program): told, never a reason to cordon."""

XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]+)\): (\d+)")
SXID = re.compile(r"nvidia-nvswitch\d*: SXid \(PCI:([0-9A-Fa-f:.]+)\): (\d+), (\S+)")
NIC_DEAD = re.compile(
    r"mlx5_core ([0-9A-Fa-f:.]+).*(?:device's health compromised|timeout\. Will cause a leak of a command resource)"
)
"""A card whose port stays ACTIVE while its firmware has stopped answering."""


@dataclass(frozen=True)
class KernelEvent:
    """What one kernel line says."""

    kind: str
    """xid, sxid or nic"""
    device: str
    """PCI address"""
    number: int
    severity: Severity


def event_in(line: str) -> KernelEvent | None:
    if found := XID.search(line):
        number = int(found[2])
        return KernelEvent("xid", found[1], number, Severity.FATAL if number in FATAL else Severity.WARN)
    if found := SXID.search(line):
        fatal = found[3].startswith("Fatal")
        return KernelEvent("sxid", found[1], int(found[2]), Severity.FATAL if fatal else Severity.WARN)
    if found := NIC_DEAD.search(line):
        return KernelEvent("nic", found[1], 0, Severity.FATAL)
    return None
