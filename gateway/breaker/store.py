"""What a breaker store does. Every implementation passes tests/contract/test_breaker_store.py."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from gateway.breaker.core import Report, Snapshot


class Answer(NamedTuple):
    counted: bool
    """Whether the call took effect (a report of this epoch, the probe granted, the token of the probe that is out)."""
    snapshot: Snapshot


class BreakerStore(Protocol):
    async def read(self, deployments: Sequence[str]) -> Mapping[str, Snapshot]: ...

    async def report(self, batch: Report, draw: int) -> Answer: ...

    async def claim_probe(self, deployment: str, token: str) -> Answer: ...

    async def hasten(self, deployment: str) -> Answer: ...

    async def settle_probe(self, deployment: str, token: str, passed: bool, draw: int) -> Answer: ...

    async def restore(self, deployment: str, copy: Snapshot) -> Answer: ...

    async def listen(self, on_change: Callable[[str], None]) -> None:
        """Runs until cancelled; names each deployment whose epoch changed. May miss some: poll as well."""
