"""A small fleet as processes: gateway replicas, fake deployments with arrival logs, and clients that retry as SDKs do.

The fakes and the clients live in the test's event loop, so that one clock times all they see. What is judged is what
they saw, never what a replica says of itself.
"""

import asyncio
import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from aiohttp import web

from prime_inference.keys import hash_of
from prime_inference.local.ports import free_ports
from tests.valkey_server import PRIMARY_NAME, SentinelSite

KEY = "sk-chaos"
START_S = 60.0
LAG_LOOK_S = 0.02
EVENTS = 5
FIRST_EVENT_S = 1
"""Five times what a whole answer takes."""


class Mode(StrEnum):
    OK = "ok"
    HANG = "hang"
    GARBAGE = "garbage"
    DIES = "dies"
    BUSY = "busy"


@dataclass
class Arrival:
    request_id: str
    started: float
    ended: float = float("inf")
    """When its work was done, or its caller was seen to be gone."""
    completed: bool = False

    @property
    def is_probe(self) -> bool:
        return self.request_id.startswith("probe-")


@dataclass
class Fake:
    """A deployment: streams EVENTS numbered events over `seconds`, unless its mode says otherwise."""

    name: str
    mode: Mode = Mode.OK
    seconds: float = 0.2
    url: str = ""
    arrivals: list[Arrival] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        arrival = Arrival(request.headers["x-request-id"], time.monotonic())
        self.arrivals.append(arrival)
        try:
            await request.read()
            return await self._answer(request, arrival)
        except ConnectionError:
            # Its caller has left while it wrote.
            return web.Response()
        finally:
            arrival.ended = min(arrival.ended, time.monotonic())

    async def _answer(self, request: web.Request, arrival: Arrival) -> web.StreamResponse:
        mode = self.mode
        if mode is Mode.HANG:
            await asyncio.Event().wait()
        if mode is Mode.BUSY:
            return web.json_response({"message": "busy", "code": 529}, status=529)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        if mode is Mode.GARBAGE:
            await response.write(b"data: {not json\n\n")
            return response
        for number in range(EVENTS):
            await response.write(_event(arrival.request_id, number, last=number == EVENTS - 1))
            if mode is Mode.DIES and number == 1:
                assert request.transport is not None
                request.transport.abort()
                return response
            await asyncio.sleep(self.seconds / EVENTS)
        arrival.ended = time.monotonic()
        arrival.completed = True
        await response.write(b"data: [DONE]\n\n")
        return response

    def real(self, since: float = 0.0) -> list[Arrival]:
        return [each for each in self.arrivals if not each.is_probe and each.started >= since]

    def most_at_once(self, since: float = 0.0) -> int:
        return most_at_once(self.real(), since)


def _event(request_id: str, number: int, last: bool) -> bytes:
    choice = {"index": 0, "delta": {"content": str(number)}, "finish_reason": "stop" if last else None}
    return f"data: {json.dumps({'id': request_id, 'choices': [choice]})}\n\n".encode()


def most_at_once(arrivals: Iterable[Arrival], since: float = 0.0) -> int:
    edges = [edge for each in arrivals for edge in ((each.started, 1), (each.ended, -1))]
    now = most = 0
    for at, step in sorted(edges):
        now += step
        if at >= since:
            most = max(most, now)
    return most


class Replica:
    """A gateway process. Its port stays over restarts, as a Service's does."""

    def __init__(self, folder: Path, number: int, settings: dict[str, object]) -> None:
        self.number = number
        self.port, self._internal = free_ports(2)
        self._log = folder / f"replica-{number}.log"
        self._environment = {
            **os.environ,
            **{f"PRIME_GATEWAY_{name}": str(value) for name, value in settings.items()},
            "PRIME_GATEWAY_PORT": str(self.port),
            "PRIME_GATEWAY_INTERNAL_PORT": str(self._internal),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def internal_url(self) -> str:
        return f"http://127.0.0.1:{self._internal}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "prime_inference", "gateway"]
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    async def ready(self, session: aiohttp.ClientSession) -> None:
        deadline = time.monotonic() + START_S
        while True:
            assert self._process is not None
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            try:
                async with session.get(f"{self.url}/readyz") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.05)

    async def metric(self, session: aiohttp.ClientSession, name: str) -> float:
        """The sum over all labels."""
        async with session.get(f"http://127.0.0.1:{self._internal}/metrics") as response:
            lines = (await response.text()).splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def ended(self, within_s: float) -> int:
        assert self._process is not None
        return await asyncio.to_thread(self._process.wait, within_s)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class End(StrEnum):
    COMPLETE = "complete"
    ERROR_EVENT = "error_event"
    STATUS = "status"
    BROKEN = "broken"
    """The connection broke, or the stream just ended."""


@dataclass
class Try:
    request_id: str
    replica: int
    sent: float
    began: float | None = None
    ended: float = 0.0
    end: End = End.BROKEN
    status: int = 0
    numbers: list[str] = field(default_factory=list)


@dataclass
class Fleet:
    folder: Path
    fakes: list[Fake]
    replicas: list[Replica]
    session: aiohttp.ClientSession
    limit: int
    tries: list[Try] = field(default_factory=list)
    lag_s: float = 0.0
    """The longest that this process was kept from its turn: on a crowded machine the replicas are, too."""

    async def watch_lag(self) -> None:
        while True:
            due = time.monotonic() + LAG_LOOK_S
            await asyncio.sleep(LAG_LOOK_S)
            self.lag_s = max(self.lag_s, time.monotonic() - due)

    def write(self, draining: Iterable[str] = ()) -> None:
        write_fleet(self.folder, self.fakes, self.limit, self._site, draining)

    _site: SentinelSite | None = None

    async def order(self, replica: int = 0, **action: object) -> dict[str, Any]:
        """By the admin API of one replica, for all."""
        url = f"{self.replicas[replica].internal_url}/admin/v1/actions"
        async with self.session.post(url, json=action, headers={"authorization": f"Bearer {KEY}"}) as response:
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, answer
            return answer

    async def valkey_troubles(self) -> int:
        """Trips without an answer so far: on a starved machine that happens to a healthy Valkey too, and each lets a
        replica admit on its share of the limit (the slack that gateway/admission states)."""
        counts = [each.metric(self.session, "prime_gateway_site_troubles_total") for each in self.replicas]
        return int(sum(await asyncio.gather(*counts)))

    async def one_try(self, replica: Replica) -> Try:
        """One streaming request, as one HTTP call."""
        attempt = Try(f"r-{secrets.token_hex(8)}", replica.number, time.monotonic())
        self.tries.append(attempt)
        headers = {"authorization": f"Bearer {KEY}", "x-request-id": attempt.request_id}
        body = {"model": "m", "messages": [{"role": "user", "content": secrets.token_hex(4)}], "stream": True}
        try:
            async with self.session.post(
                f"{replica.url}/api/v1/chat/completions", json=body, headers=headers
            ) as response:
                attempt.status = response.status
                if response.status != 200:
                    attempt.end = End.STATUS
                    await response.read()
                else:
                    await _read(response, attempt)
        except (aiohttp.ClientError, ConnectionError):
            attempt.end = End.BROKEN
        attempt.ended = time.monotonic()
        return attempt

    async def ask(self, within_s: float = 30.0) -> Try:
        """A request as a client with retries sends it: to any replica, again after 429, 503 and a refused connection."""
        deadline = time.monotonic() + within_s
        order = itertools.cycle(sorted(self.replicas, key=lambda _: secrets.randbelow(1000)))
        while True:
            attempt = await self.one_try(next(order))
            again = attempt.status in (429, 503) or (attempt.end is End.BROKEN and attempt.began is None)
            if not again or time.monotonic() > deadline:
                return attempt
            await asyncio.sleep(0.05)

    async def load(self, clients: int, seconds: float) -> list[Try]:
        """Closed loop: what each client's requests came to in the end."""
        until = time.monotonic() + seconds
        finals: list[Try] = []

        async def client() -> None:
            while time.monotonic() < until:
                finals.append(await self.ask())

        await asyncio.gather(*(client() for _ in range(clients)))
        return finals

    def judge_nothing_lost_or_doubled(self, finals: Iterable[Try], but: Iterable[End] = ()) -> None:
        """Every request was answered once and whole, and each try was completed by one deployment at most: by two only
        where the first had not begun within the time for it, as long as its replica or this process stood still."""
        completed: dict[str, list[Arrival]] = {}
        for fake in self.fakes:
            for arrival in fake.real():
                done = completed.setdefault(arrival.request_id, [])
                if arrival.completed:
                    done.append(arrival)
        allowed = {End.COMPLETE, *but}
        for final in finals:
            assert final.end in allowed, final
            assert final.numbers == [str(n) for n in range(len(final.numbers))], final
            if final.end is End.COMPLETE:
                assert len(final.numbers) == EVENTS, final
                assert completed[final.request_id], final
        for done in completed.values():
            done.sort(key=lambda arrival: arrival.started)
            for before, after in itertools.pairwise(done):
                # Answers take a fifth of that time: what was sent twice, or failed over once it had begun, comes far sooner.
                assert after.started - before.started >= 0.8 * FIRST_EVENT_S, (done, self.lag_s)


async def _read(response: aiohttp.ClientResponse, attempt: Try) -> None:
    async for line in response.content:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            attempt.end = End.COMPLETE if attempt.end is End.BROKEN else attempt.end
            return
        chunk: dict[str, Any] = json.loads(data)
        if "error" in chunk:
            attempt.end = End.ERROR_EVENT
            continue
        attempt.began = attempt.began or time.monotonic()
        attempt.numbers.append(chunk["choices"][0]["delta"]["content"])


def write_fleet(
    folder: Path, fakes: list[Fake], limit: int, site: SentinelSite | None, draining: Iterable[str] = ()
) -> None:
    fleet: dict[str, Any] = {
        "models": [{"name": "m", "deployments": [fake.name for fake in fakes]}],
        "deployments": [
            {
                "name": fake.name,
                "frontends": [fake.url],
                "capacity": {"requests": limit, "tokens": 1_000_000},
                "draining": fake.name in set(draining),
            }
            for fake in fakes
        ],
    }
    if site is not None:
        sentinels = [f"127.0.0.1:{site.sentinel.port}"]
        fleet["sites"] = [{"name": "local", "valkey": {"sentinels": sentinels, "primary_name": PRIMARY_NAME}}]
    partial = folder / "fleet.partial"
    partial.write_text(yaml.safe_dump(fleet))
    partial.replace(folder / "fleet.yaml")


@asynccontextmanager
async def fleet_of(
    folder: Path, site: SentinelSite, *, limit: int, deployments: int = 2, replicas: int = 3, **settings: object
) -> AsyncIterator[Fleet]:
    """Names are new each time, so that no breaker or lease of a former fleet is met in Valkey."""
    mark = secrets.token_hex(3)
    async with AsyncExitStack() as stack:
        fakes = [Fake(f"{mark}-{n}") for n in range(deployments)]
        for fake in fakes:
            app = web.Application()
            app.router.add_post("/{path:.*}", fake.answer)
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        write_fleet(folder, fakes, limit, site)
        keys = {"keys": [{"name": "k", "tenant": "t", "sha256": hash_of(KEY), "scopes": ["inference", "admin"]}]}
        (folder / "keys.yaml").write_text(yaml.safe_dump(keys))
        values: dict[str, object] = {
            "FLEET_FILE": folder / "fleet.yaml", "KEYS_FILE": folder / "keys.yaml", "SECRET": "s",
            "FIRST_EVENT_TIMEOUT_SECONDS": FIRST_EVENT_S, "QUEUE_SECONDS": 1, "RELOAD_SECONDS": 0.2,
            "DRAIN_SECONDS": 20, **settings,
        }  # fmt: skip
        processes = [Replica(folder, number, values) for number in range(replicas)]
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        for replica in processes:
            replica.launch()
            stack.callback(replica.close)
        await asyncio.gather(*(replica.ready(session) for replica in processes))
        fleet = Fleet(folder, fakes, processes, session, limit, _site=site)
        watching = asyncio.create_task(fleet.watch_lag())
        try:
            yield fleet
        finally:
            watching.cancel()
