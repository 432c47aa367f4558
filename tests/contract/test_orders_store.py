"""What every store of operators' orders must do, in memory and on a real Valkey."""

import asyncio

import pytest

from gateway.fleet.orders import Order, SiteOrders
from gateway.fleet.orders_store import MemoryOrdersStore, OrdersStore, OrdersUnreadable, ValkeyOrdersStore
from gateway.site.valkey_store import Script, SiteValkey

DRAIN = SiteOrders(deployments={"d": Order(draining=True)})


@pytest.fixture(params=["memory", "valkey"])
def store(request: pytest.FixtureRequest) -> OrdersStore:
    if request.param == "memory":
        return MemoryOrdersStore()
    return ValkeyOrdersStore(request.getfixturevalue("site"))


async def test_at_first_there_are_none(store: OrdersStore) -> None:
    heard = await store.read()
    assert heard.orders == SiteOrders()
    assert heard.now_ms > 1_600_000_000_000


async def test_what_was_written_is_read_with_a_revision_more(store: OrdersStore) -> None:
    written = await store.write(0, DRAIN)
    assert written is not None
    assert written.orders.revision == 1
    assert (await store.read()).orders == written.orders
    assert written.orders.deployments == DRAIN.deployments


async def test_of_two_who_saw_the_same_one_comes_first_and_the_other_is_told(store: OrdersStore) -> None:
    answers = await asyncio.gather(*(store.write(0, DRAIN) for _ in range(5)))
    assert sum(answer is not None for answer in answers) == 1
    assert (await store.read()).orders.revision == 1
    assert await store.write(0, SiteOrders()) is None
    assert await store.write(1, SiteOrders()) is not None


async def test_what_is_no_orders_of_ours_is_refused(site: SiteValkey) -> None:
    await site.run(
        Script("redis.call('SET', KEYS[1], ARGV[1])"), [site.key("orders", site.name)], ['{"revision": "x"}']
    )
    with pytest.raises(OrdersUnreadable):
        await ValkeyOrdersStore(site).read()
