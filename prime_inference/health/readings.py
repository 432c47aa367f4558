"""What the sources read, as plain values. `None` is "not supported, or did not answer"; never zero, never a sentinel."""

from dataclasses import dataclass, field
from enum import IntEnum

UNSUPPORTED_FROM = 9223372036854775000
"""NVIDIA's libraries fill an unsupported 64-bit counter with values just below 2^63 (NVIDIA/DCGM issue 173)."""


def counter(value: int | None) -> int | None:
    """A counter as it was read, without the sentinels that stand for "not supported"."""
    return None if value is None or value < 0 or value >= UNSUPPORTED_FROM else value


class FabricState(IntEnum):
    """NVML's, from nvml.h."""

    NOT_SUPPORTED = 0
    NOT_STARTED = 1
    IN_PROGRESS = 2
    COMPLETED = 3


class FabricSummary(IntEnum):
    NOT_SUPPORTED = 0
    HEALTHY = 1
    UNHEALTHY = 2
    LIMITED_CAPACITY = 3


@dataclass(frozen=True)
class Fabric:
    """A GPU's membership in a multi-node NVLink domain."""

    cluster_uuid: str
    clique: int
    state: int
    """`FabricState`; `status` means something only when completed."""
    status: int
    summary: int | None = None
    """`FabricSummary`; None where the driver has no such field."""


@dataclass(frozen=True)
class Gpu:
    index: int
    uuid: str
    links_active: tuple[bool | None, ...] = ()
    """One a link, in order."""
    link_errors: dict[str, int | None] = field(default_factory=dict)
    """Sums over the links, by kind: replay, recovery, crc."""
    ecc_uncorrected: int | None = None
    """Since the driver was loaded."""
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery_action: int | None = None
    """NVML field 230: 0 none, 1 reset the GPU, 2 reboot, 3 and 4 drain first, 5 recover the IMEX domain."""
    fabric: Fabric | None = None


@dataclass(frozen=True)
class Port:
    """One port of a network card, from sysfs."""

    device: str
    number: int
    state: str | None
    """ACTIVE, DOWN, INIT, ARMED; None if the file cannot be read."""
    phys_state: str | None
    link_layer: str | None
    counters: dict[str, int | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.device}/{self.number}"


@dataclass(frozen=True)
class KernelLine:
    """A record of the kernel's ring buffer."""

    sequence: int
    text: str


@dataclass(frozen=True)
class Snapshot:
    """One round of readings. A source that hung or failed leaves None; its probe says why."""

    at: float
    """Unix seconds."""
    boot_id: str | None
    gpus: tuple[Gpu, ...] | None = None
    ports: tuple[Port, ...] | None = None
    kernel: tuple[KernelLine, ...] | None = None
    imex: str | None = None
    """What `nvidia-imex-ctl -q` says of this node: READY, or another word."""
