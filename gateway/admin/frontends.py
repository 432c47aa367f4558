"""What each Dynamo frontend says of its pools and its times: asked only while somebody looks."""

import asyncio
from dataclasses import dataclass, field

import aiohttp

from gateway.admin.window import Labels, Values
from prime_inference.local.instances import Instances, instances_in

ASK_TIMEOUT_S = 1.0
"""The page is drawn every second or so; a frontend that is slower than this is shown as silent."""

MAX_PAGE_BYTES = 4 * 1024 * 1024

HISTOGRAMS = ("dynamo_frontend_time_to_first_token_seconds", "dynamo_frontend_inter_token_latency_seconds")
GAUGES = ("dynamo_frontend_inflight_requests", "dynamo_frontend_queued_requests")


NOBODY = Instances(0, 0)


@dataclass(frozen=True)
class FrontendPage:
    url: str
    answers: bool = False
    pools: Instances = NOBODY
    values: Values = field(default_factory=dict)

    def total(self, name: str) -> float | None:
        """None if it says nothing of it."""
        found = [value for (sample, _), value in self.values.items() if sample == name]
        return sum(found) if found else None


async def ask_all(urls: list[str]) -> dict[str, FrontendPage]:
    timeout = aiohttp.ClientTimeout(total=ASK_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
        pages = await asyncio.gather(*(_ask(session, url) for url in urls))
    return {page.url: page for page in pages}


async def _ask(session: aiohttp.ClientSession, url: str) -> FrontendPage:
    try:
        health, metrics = await asyncio.gather(_get(session, f"{url}/health"), _get(session, f"{url}/metrics"))
    except (aiohttp.ClientError, TimeoutError, ConnectionError):
        return FrontendPage(url)
    return FrontendPage(url, True, instances_in(health), values_in(metrics.decode(errors="replace")))


async def _get(session: aiohttp.ClientSession, url: str) -> bytes:
    async with session.get(url, allow_redirects=False) as response:
        return await response.content.read(MAX_PAGE_BYTES)


def values_in(text: str) -> dict[tuple[str, Labels], float]:
    """The few samples that the console shows, out of a page of Prometheus's text format."""
    values: dict[tuple[str, Labels], float] = {}
    for line in text.splitlines():
        if line.startswith(HISTOGRAMS) or line.startswith(GAUGES):
            name, labels, value = _sample(line)
            values[name, labels] = value
    return values


def _sample(line: str) -> tuple[str, Labels, float]:
    """Model names and bounds carry no quote, comma or brace, so no unescaping is needed; a line that is no sample
    counts as zero of itself."""
    head, _, value = line.rpartition(" ")
    name, _, rest = head.partition("{")
    pairs = (pair.partition("=") for pair in rest.rstrip("}").split(",") if "=" in pair)
    labels = tuple(sorted((key.strip(), text.strip().strip('"')) for key, _, text in pairs))
    try:
        return name, labels, float(value)
    except ValueError:
        return name, labels, 0.0
