"""Where a site's orders are kept: in its Valkey, so that all replicas obey, or in this process where there is none."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import msgspec

from gateway.fleet.orders import Heard, SiteOrders
from gateway.site.valkey_store import Script, SiteValkey

SCRIPT = Script.load(("gateway.fleet", "orders.lua"))


class OrdersUnreadable(Exception):
    """What the site keeps is no orders of ours."""


class OrdersStore(Protocol):
    async def read(self) -> Heard:
        """Raises SiteUnavailable and OrdersUnreadable."""
        ...

    async def write(self, seen: int, orders: SiteOrders) -> Heard | None:
        """None if another change came first: `seen` is not the revision that rules. Raises as `read` does."""
        ...


class ValkeyOrdersStore:
    def __init__(self, site: SiteValkey) -> None:
        self._site = site
        # By name: sites may share one Valkey, and an order is for one of them.
        self._key = site.key("orders", site.name)

    async def read(self) -> Heard:
        return _heard(await self._run("read"))

    async def write(self, seen: int, orders: SiteOrders) -> Heard | None:
        text = msgspec.json.encode(replace(orders, revision=seen + 1)).decode()
        answer = await self._run("write", seen, text)
        return _heard(answer) if answer[0] == 1 else None

    async def _run(self, *arguments: str | int) -> tuple[int, bytes, bytes]:
        written, now, text = await self._site.run(SCRIPT, [self._key], list(arguments))
        return written, now, text


class MemoryOrdersStore:
    def __init__(self, clock_ms: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self._orders = SiteOrders()
        self._clock_ms = clock_ms

    async def read(self) -> Heard:
        return Heard(self._orders, self._clock_ms())

    async def write(self, seen: int, orders: SiteOrders) -> Heard | None:
        if seen != self._orders.revision:
            return None
        self._orders = replace(orders, revision=seen + 1)
        return await self.read()


def _heard(answer: tuple[int, bytes, bytes]) -> Heard:
    _, now, text = answer
    try:
        orders = msgspec.json.decode(text, type=SiteOrders) if text else SiteOrders()
    except msgspec.DecodeError as error:
        raise OrdersUnreadable(f"the site's orders cannot be read: {error}") from error
    return Heard(orders, int(now))
