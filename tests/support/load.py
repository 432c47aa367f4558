"""Clients that never retry: whatever goes wrong for one of them is a failed request."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp


@dataclass
class Load:
    """Streams that run one after another in each of several clients, over connections that are kept."""

    url: str
    key: str
    model: str
    tokens: int
    whole: int = 0
    failed: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    _done: bool = False

    async def client(self, session: aiohttp.ClientSession) -> None:
        while not self._done:
            began = time.monotonic()
            try:
                wrong = await self._one(session)
            except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
                wrong = f"{type(error).__name__}: {error}"
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            if wrong:
                self.failed.append(wrong)
            else:
                self.whole += 1

    async def _one(self, session: aiohttp.ClientSession) -> str:
        """What was wrong with it; nothing if it was a whole answer."""
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": secrets.token_hex(4)}],
            "max_tokens": self.tokens,
            "stream": True,
        }
        headers = {"authorization": f"Bearer {self.key}"}
        finished = False
        async with session.post(f"{self.url}/chat/completions", json=body, headers=headers) as response:
            if response.status != 200:
                return f"status {response.status}: {(await response.text())[:200]}"
            async for line in response.content:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        return f"error event: {event['error']}"
                    finished |= any(choice.get("finish_reason") for choice in event["choices"])
        return "" if finished else "a stream without an end"


@asynccontextmanager
async def load(url: str, key: str, model: str, *, clients: int, tokens: int) -> AsyncIterator[Load]:
    running = Load(url, key, model, tokens)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        tasks = [asyncio.create_task(running.client(session)) for _ in range(clients)]
        try:
            yield running
        finally:
            running._done = True
            await asyncio.gather(*tasks)
