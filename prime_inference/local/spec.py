"""A process of the stack, as data: the supervisor knows nothing else about it."""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class TcpPing:
    """Ready when a Valkey answers PING."""

    port: int


@dataclass(frozen=True)
class HttpOk:
    """Ready when the URL answers 200."""

    url: str


Probe = TcpPing | HttpOk


class Role(StrEnum):
    """What a process is in the design's words."""

    VALKEY = "valkey"
    FRONTEND = "frontend"
    PREFILL = "prefill"
    DECODE = "decode"
    GATEWAY = "gateway"
    L2_SHARD = "l2"
    LMCACHE = "lmcache"
    MOONCAKE = "mooncake"


@dataclass(frozen=True)
class ProcessSpec:
    """How one process is started, when it counts as ready, and how it is stopped."""

    name: str
    role: Role
    argv: tuple[str, ...]
    env: dict[str, str]
    probe: Probe
    after: tuple[str, ...] = ()
    """Names of processes that must be ready before this one starts."""
    ready_within_s: float = 60.0
    """Given up on at start after this long."""
    stop_within_s: float = 10.0
    """Killed when SIGTERM has not ended it after this long."""
    pass_fds: tuple[int, ...] = ()
    """Open files that it inherits."""
    memory_mapped_by: Role | None = None
    """Processes that map this one's GPU memory and keep it allocated after its death, until they end themselves."""
    nice: int = 0
    """Added to its niceness: on a small machine the engines must not starve who hands them work."""
