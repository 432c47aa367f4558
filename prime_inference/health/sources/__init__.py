"""Where readings come from. The agent knows only these protocols; a test or a captured fixture is as good as a node."""

from typing import Protocol

from prime_inference.health.readings import Gpu, KernelLine, Port


class GpuSource(Protocol):
    def gpus(self) -> tuple[Gpu, ...]:
        """All GPUs now. Raises whatever its driver raises; the probe around it is the boundary."""


class PortSource(Protocol):
    def ports(self) -> tuple[Port, ...]: ...

    def boot_id(self) -> str | None: ...


class KernelSource(Protocol):
    def lines(self) -> tuple[KernelLine, ...]:
        """Records since the last call; at the first, those of this boot."""


class ImexSource(Protocol):
    def state(self) -> str | None:
        """This node's state in its IMEX domain; None where there is no IMEX."""


class Clock(Protocol):
    def now(self) -> float:
        """Unix seconds."""
