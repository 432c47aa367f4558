"""A node for tests: sources that say what they are told, a clock that is moved by hand."""

import threading
from dataclasses import dataclass, field
from pathlib import Path

from prime_inference.health.agent import Agent, Sources
from prime_inference.health.readings import Fabric, Gpu, KernelLine, Port

BOOT = "boot-1"


def gpu(index: int = 0, **changes: object) -> Gpu:
    given: dict[str, object] = {
        "index": index,
        "uuid": f"gpu-{index}",
        "links_active": (True,) * 18,
        "link_errors": {"replay": 0, "recovery": 0, "crc": 0},
        "ecc_uncorrected": 0,
        "remap_pending": False,
        "remap_failed": False,
        "recovery_action": 0,
    }
    return Gpu(**{**given, **changes})  # type: ignore[arg-type]


def fabric(**changes: object) -> Fabric:
    given: dict[str, object] = {"cluster_uuid": "rack", "clique": 1, "state": 3, "status": 0, "summary": 1}
    return Fabric(**{**given, **changes})  # type: ignore[arg-type]


def port(state: str | None = "ACTIVE", **counters: int | None) -> Port:
    physical = None if state is None else "LinkUp" if state == "ACTIVE" else "Disabled"
    return Port("mlx5_0", 1, state, physical, "InfiniBand", {"link_downed": 0, **counters})


@dataclass
class Node:
    """Every source at once."""

    gpu_list: tuple[Gpu, ...] = ()
    port_list: tuple[Port, ...] = ()
    new_lines: list[str] = field(default_factory=list)
    imex: str | None = None
    imex_error: Exception | None = None
    boot: str | None = BOOT
    at: float = 1000.0
    hang: threading.Event | None = None

    def gpus(self) -> tuple[Gpu, ...]:
        if self.hang is not None:
            self.hang.wait(10)
        return self.gpu_list

    def ports(self) -> tuple[Port, ...]:
        return self.port_list

    def boot_id(self) -> str | None:
        return self.boot

    def lines(self) -> tuple[KernelLine, ...]:
        lines = tuple(KernelLine(i, text) for i, text in enumerate(self.new_lines))
        self.new_lines = []
        return lines

    def state(self) -> str | None:
        if self.imex_error is not None:
            raise self.imex_error
        return self.imex

    def now(self) -> float:
        return self.at


def agent_of(
    node: Node,
    *,
    name: str = "node-a",
    state_file: Path | None = None,
    clear_after_s: float = 60.0,
    deadline_s: float = 60.0,
) -> Agent:
    return Agent(name, Sources(node, node, node, node), node, deadline_s, clear_after_s, state_file)
