"""What a request hears of the process's end."""

import asyncio

from gateway.api.presence import Shutdown


async def test_who_waits_hears_of_it_once_and_who_has_left_does_not() -> None:
    shutdown, heard = Shutdown(), []
    with shutdown.then(lambda: heard.append("left")):
        pass
    with shutdown.then(lambda: heard.append("first")), shutdown.then(lambda: heard.append("second")):
        shutdown.come()
        await asyncio.sleep(0)
    assert heard == ["first", "second"]


async def test_who_comes_too_late_hears_of_it_too() -> None:
    shutdown, heard = Shutdown(), []
    shutdown.come()
    with shutdown.then(lambda: heard.append("late")):
        assert heard == []
        await asyncio.sleep(0)
    with shutdown.then(lambda: heard.append("later")):
        pass
    await asyncio.sleep(0)
    assert heard == ["late"]
