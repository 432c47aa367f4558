"""A gateway in an event loop of its own thread, for tests that are no coroutines: hypothesis, schemathesis, SDKs."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.gateway import RunningGateway, gateway
from tests.support.upstream import Script, upstream

START_S = 30.0


@contextmanager
def served_gateway(folder: Path, script: Script, **options: Any) -> Iterator[RunningGateway]:
    """In front of one deployment that answers with `script`. Only its addresses are to be used from outside."""
    running: list[RunningGateway] = []
    failed: list[BaseException] = []
    ready, done = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with upstream(script) as up, gateway(folder, [up.url], **options) as gw:
            running.append(gw)
            ready.set()
            await done.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # noqa: BLE001 - handed over to the thread of the test
            failed.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(START_S)
    try:
        if running:
            yield running[0]
    finally:
        if loops and not failed:
            loops[0].call_soon_threadsafe(done.set)
        thread.join(START_S)
    if failed:
        raise failed[0]
