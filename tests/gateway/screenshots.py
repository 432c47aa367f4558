"""`python -m tests.gateway.screenshots`: the console's pictures in docs/console, of a scripted fleet in a bad night."""

import asyncio
import hashlib
import json
import sys
import tempfile
from pathlib import Path

import yaml
from PIL import Image

from tests.gateway.test_admin import ADMIN, act
from tests.gateway.test_console import browser_page, signed_in
from tests.gateway.test_relay import DONE, STREAM, UNARY, chunk
from tests.support.dynamo import Frontend, frontend
from tests.support.gateway import RunningGateway, gateway
from tests.valkey_server import ValkeyServer

OUT = Path(__file__).parents[2] / "docs" / "console"
NAMES = ("gb200-east", "b300-west", "burst")
REQUESTS = 40
USED = {"prompt_tokens": 700, "completion_tokens": 120, "prompt_tokens_details": {"cached_tokens": 610}}
USAGE = b"data: " + json.dumps({"id": "c", "choices": [], "usage": USED}).encode() + b"\n\n"
ANSWER = b"".join([chunk("a"), chunk("b", "stop"), USAGE, DONE])


def name_them(folder: Path) -> None:
    """The gateway of tests calls its deployments d0, d1, ...; here they have names of their own."""
    text = (folder / "fleet.yaml").read_text()
    for number, name in enumerate(NAMES):
        text = text.replace(f"d{number}", name)
    fleet = yaml.safe_load(text)
    sites = ("us-east", "us-west", "us-east")
    for deployment, site in zip(fleet["deployments"], sites, strict=True):
        deployment |= {"site": site, "priority": 0, "capacity": {"requests": 64, "tokens": 2_000_000}}
    fleet["deployments"][2] |= {"overflow": True, "weight": 0.2}
    (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))


async def busy(gw: RunningGateway, frontends: list[Frontend]) -> None:
    for number, each in enumerate(frontends):
        each.token_times(0.4 + number, 0.011 + 0.01 * number, 400)
        each.in_flight.labels("m").set(31 - 9 * number)
        each.queued.labels("m").set(number)
    for number in range(REQUESTS):
        body = {**STREAM, "model": "glm-5.3", "messages": [{"role": "user", "content": f"{number}"}]}
        async with gw.session.post(f"{gw.url}/chat/completions", json=body) as response:
            await response.read()


async def pictures(out: Path) -> None:
    server = ValkeyServer().start()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = {"key": ADMIN, "model": "glm-5.3", "valkey_url": f"redis://127.0.0.1:{server.port}/0"}
        async with (
            frontend(UNARY, stream=ANSWER) as east,
            frontend(b"{}", status=500) as west,
            frontend(UNARY, stream=ANSWER) as burst,
        ):
            frontends = [east, west, burst]
            urls = [each.url for each in frontends]
            async with gateway(folder, urls, **settings, reload_seconds=0.1) as gw:  # type: ignore[arg-type]
                name_them(folder)
                await asyncio.sleep(1)
                for scheme in ("dark", "light"):
                    async with browser_page(color_scheme=scheme, viewport={"width": 1180, "height": 900}) as page:
                        await signed_in(page, gw, NAMES[0])
                        await page.wait_for_timeout(1500)
                        await busy(gw, frontends)
                        if scheme == "dark":
                            await act(gw, action="weight", deployment="burst", weight=1, start=0.05, ramp_seconds=600)
                        else:
                            await act(gw, action="drain", deployment="gb200-east")
                        await page.wait_for_timeout(2500)
                        await page.screenshot(path=out / f"{scheme}.png", full_page=True)
                        if scheme == "light":
                            await page.get_by_role("button", name="Weight: burst").click()
                            await page.screenshot(path=out / "weight.png")
    server.close()


def of_the_page() -> str:
    """A digest of the page's own files, kept beside its pictures: another page wants new ones."""
    digest = hashlib.sha256()
    for path in sorted((OUT.parents[1] / "gateway" / "console").glob("console.*")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def shrink(path: Path) -> None:
    """A page of few colours needs no more: a third of the bytes."""
    with Image.open(path) as picture:
        few = picture.convert("RGB").quantize(96, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


if __name__ == "__main__":
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else OUT
    out.mkdir(exist_ok=True)
    asyncio.run(pictures(out))
    for path in out.glob("*.png"):
        shrink(path)
    (out / "page.sha256").write_text(of_the_page() + "\n")
