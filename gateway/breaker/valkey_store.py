"""The breaker store in a site's Valkey. Raises SiteUnavailable; see breaker.lua for the law."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gateway.breaker.core import BreakerSettings, Report, Snapshot, State
from gateway.breaker.store import Answer
from gateway.site.valkey_store import Script, SiteValkey

SCRIPT = Script.load(("gateway.breaker", "breaker.lua"))


class ValkeyBreakerStore:
    def __init__(self, site: SiteValkey, settings: BreakerSettings, clock_ms: Callable[[], int] | None = None) -> None:
        """Without `clock_ms` time is the server's; tests pass a clock to run the law on times of their choice."""
        self._site = site
        self._settings = json.dumps(asdict(settings))
        self._clock_ms = clock_ms
        self._channel = site.key("breaker", "changed")

    async def read(self, deployments: Sequence[str]) -> Mapping[str, Snapshot]:
        if not deployments:
            return {}
        answers = await self._run("read", deployments, [])
        return {name: _snapshot(answer) for name, answer in zip(deployments, answers, strict=True)}

    async def report(self, batch: Report, draw: int) -> Answer:
        return await self._change(
            "report", batch.deployment, [batch.epoch, batch.succeeded, batch.failed, batch.trailing, draw]
        )

    async def claim_probe(self, deployment: str, token: str) -> Answer:
        return await self._change("claim", deployment, [token])

    async def hasten(self, deployment: str) -> Answer:
        return await self._change("hasten", deployment, [])

    async def settle_probe(self, deployment: str, token: str, passed: bool, draw: int) -> Answer:
        return await self._change("settle", deployment, [token, int(passed), draw])

    async def restore(self, deployment: str, copy: Snapshot) -> Answer:
        return await self._change("restore", deployment, list(copy))

    async def listen(self, on_change: Callable[[str], None]) -> None:
        await self._site.listen([self._channel], lambda _channel, deployment: on_change(deployment))

    async def _change(self, op: str, deployment: str, args: Sequence[str | int]) -> Answer:
        counted, *spans = await self._run(op, [deployment], [deployment, *args])
        return Answer(counted == 1, _snapshot(spans))

    async def _run(self, op: str, deployments: Sequence[str], args: Sequence[str | int]) -> Any:
        clock: str | int = "" if self._clock_ms is None else self._clock_ms()
        keys = [self._site.key("breaker", name) for name in deployments]
        return await self._site.run(SCRIPT, keys, [op, self._settings, clock, self._channel, *args])


def _snapshot(answer: Sequence[Any]) -> Snapshot:
    state, *numbers = answer
    return Snapshot(State(state.decode()), *(int(number) for number in numbers))
