"""What a check may find: closed enums, so that every consumer can be complete."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    BAD = "bad"
    UNKNOWN = "unknown"
    """The source is absent, not supported or did not answer. It never heals a fault and never pages as one."""


class Severity(StrEnum):
    """What a bad verdict costs."""

    WARN = "warn"
    """Told to people and to Prometheus; work goes on."""
    FATAL = "fatal"
    """Work on this node may be wrong, stuck or slow: it leaves the rotation."""


class Check(StrEnum):
    GPU_COUNT = "gpu_count"
    NVLINK_DOWN = "nvlink_down"
    NVLINK_ERRORS = "nvlink_errors"
    ECC_UNCORRECTED = "ecc_uncorrected"
    ROW_REMAP = "row_remap"
    RECOVERY_ACTION = "recovery_action"
    FABRIC = "fabric"
    FABRIC_JOIN = "fabric_join"
    """A GPU that was in an NVLink domain and does not come back into it; the domain's other nodes go on."""
    XID = "xid"
    NIC_FATAL = "nic_fatal"
    IB_PORT = "ib_port"
    IB_COUNTER = "ib_counter"
    IB_SATURATED = "ib_saturated"
    IB_FLAP = "ib_flap"
    IMEX = "imex"
    PROBE = "probe"
    CANARY_TRANSFER = "canary_transfer"
    CANARY_TOKENS = "canary_tokens"


@dataclass(frozen=True)
class Finding:
    """One verdict about one thing."""

    check: Check
    entity: str
    """What it is about: gpu0, gpu3/link7, mlx5_0/1, xid79/gpu2, nvml. Of a bounded set, since it becomes a label."""
    verdict: Verdict
    detail: str = ""
    severity: Severity = Severity.FATAL

    @property
    def key(self) -> tuple[Check, str]:
        return self.check, self.entity
