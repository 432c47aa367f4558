"""The admission store in a site's Valkey. Raises SiteUnavailable; see registry.py for the law."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gateway.admission.policy import Capacity, Weight
from gateway.admission.store import Gauges, LeaseSettings, Lent, Replica, Standing, StoreAnswer, StoreAsk, Verdict
from gateway.ratelimit.core import Charge
from gateway.site.valkey_store import Script, SiteValkey

SCRIPT = Script.load(("gateway.ratelimit", "bucket.lua"), ("gateway.admission", "admission.lua"))

FIRST_BUCKET_KEY = 5
"""Where the buckets start in KEYS of an acquire, counted as Lua does."""


def lease_key(site: SiteValkey) -> str:
    """A replica holds one lease a site. Two sites with one set of leases would count it twice, and halve its share."""
    return site.own_key("admission", "lease")


def held_key(site: SiteValkey, deployment: str) -> str:
    return site.own_key("admission", "held", deployment)


class ValkeyAdmissionStore:
    def __init__(self, site: SiteValkey, settings: LeaseSettings, clock_ms: Callable[[], int] | None = None) -> None:
        """Without `clock_ms` time is the server's; tests pass a clock to run the law on times of their choice."""
        self._site = site
        self._settings = json.dumps(asdict(settings))
        self._clock_ms = clock_ms
        self._channel = site.own_key("admission", "scarce")
        self._lease_keys = [lease_key(site), site.own_key("admission", "meta")]

    async def acquire(
        self,
        replica: Replica,
        deployment: str,
        capacity: Capacity,
        held: Gauges,
        asks: Sequence[StoreAsk],
        within_s: float,
    ) -> tuple[Standing, list[StoreAnswer]]:
        buckets = list(dict.fromkeys(loan.charge.bucket for ask in asks for loan in ask.loans))
        index = {bucket: FIRST_BUCKET_KEY + i for i, bucket in enumerate(buckets)}
        request = {
            **replica._asdict(),
            "deployment": deployment,
            "limit": capacity.limit,
            "floors": capacity.floors,
            "g": held,
            "asks": [
                {
                    "a": ask.account,
                    "k": ask.kind,
                    "w": ask.weight,
                    "h": ask.headroom,
                    "l": [
                        (index[loan.charge.bucket], loan.charge.limit, loan.charge.amount, loan.slice)
                        for loan in ask.loans
                    ],
                }
                for ask in asks
            ],
        }
        keys = [*self._lease_keys, *self._deployment_keys(deployment), *(self._bucket_key(each) for each in buckets)]
        answer = await self._run("acquire", keys, request, within_s)
        standing = self._standing(answer, {deployment: answer["scarce"]})
        return standing, [_answer(each) for each in answer["asks"]] if asks else []

    async def beat(self, replica: Replica, held: Mapping[str, tuple[Capacity, Gauges]]) -> Standing:
        request = {
            **replica._asdict(),
            "deployments": [{"limit": capacity.limit, "g": gauges} for capacity, gauges in held.values()],
        }
        keys = [*self._lease_keys, *(key for deployment in held for key in self._deployment_keys(deployment))]
        answer = await self._run("beat", keys, request)
        return self._standing(answer, dict(zip(held, answer["scarce"], strict=True)) if held else {})

    async def leave(self, replica: Replica, deployments: Sequence[str]) -> None:
        keys = [*self._lease_keys, *(self._deployment_keys(deployment)[0] for deployment in deployments)]
        await self._run("leave", keys, {"epoch": replica.epoch})

    async def adjust(self, charges: Sequence[Charge]) -> Sequence[int]:
        if not charges:
            return []
        levels: list[int] = await self._run(
            "adjust",
            [self._bucket_key(charge.bucket) for charge in charges],
            [(charge.limit, charge.amount) for charge in charges],
        )
        return [int(level) for level in levels]

    async def listen(self, on_scarce: Callable[[str], None]) -> None:
        await self._site.listen([self._channel], lambda _channel, deployment: on_scarce(deployment))

    async def _run(self, op: str, keys: Sequence[str], request: object, within_s: float | None = None) -> Any:
        clock: str | int = "" if self._clock_ms is None else self._clock_ms()
        args = [op, json.dumps(request, separators=(",", ":")), clock, self._settings, self._channel]
        return json.loads(await self._site.run(SCRIPT, keys, args, within_s))

    def _deployment_keys(self, deployment: str) -> list[str]:
        return [held_key(self._site, deployment), self._site.own_key("admission", "calling", deployment)]

    def _bucket_key(self, bucket: str) -> str:
        # Not by site: a key's limit is one limit wherever two sites can count it together.
        return self._site.key("ratelimit", bucket)

    @staticmethod
    def _standing(answer: Mapping[str, Any], scarce: Mapping[str, bool]) -> Standing:
        return Standing(answer["replicas"], answer["lost"], answer["settling"], scarce)


def _answer(answer: Mapping[str, Any]) -> StoreAnswer:
    verdict = Verdict(answer["v"])
    if verdict is Verdict.LIMITED:
        return StoreAnswer(verdict, short=answer["s"], wait_ms=answer["w"])
    if verdict is Verdict.FULL:
        return StoreAnswer(verdict)
    lent = tuple(Lent(int(amount), int(level)) for amount, level in answer["l"])
    requests, tokens = answer["h"]
    return StoreAnswer(verdict, Weight(int(requests), int(tokens)), lent)
