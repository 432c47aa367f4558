"""Hears what operators ordered at each site and has the snapshot obey. A site that cannot be asked: its last orders stay."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from gateway.fleet.orders import Heard, SiteOrders
from gateway.fleet.orders_store import MemoryOrdersStore, OrdersStore, OrdersUnreadable, ValkeyOrdersStore
from gateway.site import SiteUnavailable
from gateway.site.valkey_store import SiteValkey

logger = logging.getLogger("gateway.fleet")

Sites = Callable[[], Iterable[tuple[str, SiteValkey | None]]]
"""The sites of the present snapshot, each with its Valkey's client."""


class OrdersWatch:
    def __init__(self, sites: Sites, obey: Callable[[Mapping[str, Heard]], None]) -> None:
        self._sites = sites
        self._obey = obey
        self._stores: dict[str, tuple[SiteValkey | None, OrdersStore]] = {}
        self.heard: dict[str, Heard] = {}

    async def run(self, every_s: float) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await self.look()

    async def look(self) -> None:
        await asyncio.gather(*(self._read(site, valkey) for site, valkey in self._sites()))
        self._obey(self.heard)

    async def change(self, site: str, orders: SiteOrders) -> Heard | None:
        """Replaces the site's orders, if `orders.revision` is still the one that rules, and obeys at once; None if it is
        not. Raises SiteUnavailable and OrdersUnreadable."""
        valkey = dict(self._sites())[site]
        heard = await self._store(site, valkey).write(orders.revision, orders)
        if heard is not None:
            self.heard[site] = heard
            self._obey(self.heard)
        return heard

    async def _read(self, site: str, valkey: SiteValkey | None) -> None:
        try:
            self.heard[site] = await self._store(site, valkey).read()
        except SiteUnavailable:
            return
        except OrdersUnreadable as error:
            logger.error("orders refused, the former ones stay", extra={"site": site, "error": str(error)})

    def _store(self, site: str, valkey: SiteValkey | None) -> OrdersStore:
        known = self._stores.get(site)
        if known is None or known[0] is not valkey:
            store = MemoryOrdersStore() if valkey is None else ValkeyOrdersStore(valkey)
            known = self._stores[site] = (valkey, store)
        return known[1]
