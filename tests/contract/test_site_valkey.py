"""The client of a site's Valkey, where Valkey is slow, silent, gone and back."""

import asyncio
import time

import pytest

from gateway.site import SiteUnavailable, Trouble
from gateway.site.valkey_store import Script, SiteAddress, SiteValkey
from tests.valkey_server import ValkeyServer

ECHO = Script("#!lua flags=allow-oom\nreturn ARGV[1]")
BUSY_MACHINE_S = 1.5


async def test_replies_never_reach_another_caller_whoever_is_cancelled(site: SiteValkey) -> None:
    async def echo(number: int) -> None:
        assert await site.run(ECHO, [], [number], 5.0) == str(number).encode()

    for number in range(300):
        tasks = [asyncio.create_task(echo(number * 3 + each)) for each in range(3)]
        for _ in range(number % 10):
            await asyncio.sleep(0)
        tasks[number % 3].cancel()
        for done in await asyncio.gather(*tasks, return_exceptions=True):
            assert done is None or isinstance(done, asyncio.CancelledError)
    await asyncio.sleep(0.1)
    assert not site._running
    assert not site._redis.connection_pool._in_use_connections
    assert len(site._redis.connection_pool._available_connections) <= 8, "as many as were ever used at once"


async def test_a_silent_valkey_is_given_up_after_two_trips_and_found_again(own_valkey: ValkeyServer) -> None:
    site = SiteValkey("test", SiteAddress(port=own_valkey.port))
    keeper = asyncio.create_task(site.keep_link())
    try:
        await site.run(ECHO, [], ["warm"])
        own_valkey.pause()
        troubles, waits = [], []
        for _ in range(4):
            started = time.monotonic()
            with pytest.raises(SiteUnavailable) as caught:
                await site.run(ECHO, [], ["x"], 0.1)
            waits.append(time.monotonic() - started)
            troubles.append(caught.value.trouble)
        assert troubles == [Trouble.TIMEOUT, Trouble.TIMEOUT, Trouble.LINK_DOWN, Trouble.LINK_DOWN]
        assert max(waits[:2]) < 0.045 + BUSY_MACHINE_S
        own_valkey.resume()
        for _ in range(500):
            if site.link.is_up:
                break
            await asyncio.sleep(0.01)
        assert await site.run(ECHO, [], ["back"]) == b"back"
        assert site.link.generation >= 1
    finally:
        own_valkey.resume()
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)
        await site.close()


async def test_a_spent_budget_sends_nothing(site: SiteValkey) -> None:
    before = site.trips
    with pytest.raises(SiteUnavailable) as caught:
        await site.run(ECHO, [], ["x"], within_s=0.0)
    assert caught.value.trouble is Trouble.BUDGET_SPENT
    assert site.trips == before


async def test_pushes_arrive_again_after_a_restart(own_valkey: ValkeyServer) -> None:
    site = SiteValkey("test", SiteAddress(port=own_valkey.port))
    heard: list[tuple[str, str]] = []
    listener = asyncio.create_task(site.listen(["news"], lambda channel, text: heard.append((channel, text))))
    try:

        async def told(text: str) -> bool:
            with own_valkey.client() as client:
                client.publish("news", text)
            await asyncio.sleep(0.02)
            return ("news", text) in heard

        for text in ("before", "after"):
            deadline = time.monotonic() + 5.0
            while not await told(text):
                assert time.monotonic() < deadline, f"not told {text}"
            if text == "before":
                own_valkey.kill()
                own_valkey.start()
    finally:
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)
        await site.close()


async def test_a_bug_in_a_script_is_no_trouble_of_valkeys_and_propagates(site: SiteValkey) -> None:
    from redis.exceptions import ResponseError

    with pytest.raises(ResponseError):
        await site.run(Script("#!lua\nreturn nothing.at_all"), [], [], 5.0)
    assert site.link.is_up
