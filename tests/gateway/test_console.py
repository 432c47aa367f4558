"""The console as an operator meets it: a real Chromium, the real internal listener, scripted deployments.

`python -m tests.gateway.screenshots` (beside this file) makes the pictures in docs/console.md.
"""

import asyncio
import importlib
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import needs_on_ci
from tests.gateway.test_admin import ADMIN
from tests.gateway.test_relay import CHAT, UNARY
from tests.support.dynamo import Frontend, frontend
from tests.support.gateway import KEY, RunningGateway, gateway

# Missing, it is a skip for a user and an error in CI, which installs everything.
find = importlib.import_module if os.environ.get("CI") == "true" else pytest.importorskip
playwright: Any = find("playwright.async_api")
Page = playwright.Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE_MS = 10_000

EXPECTED = ("status of 4", "requires 'TrustedHTML'", "net::ERR_FAILED")
"""What tests provoke: a refused key, an order that needs force, HTML out of a string, a replica that is gone."""


@asynccontextmanager
async def browser_page(**options: object) -> AsyncIterator[Page]:
    """A page that fails the test for whatever the browser complains of: a script error, a breach of the policy."""
    complaints: list[str] = []
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            page = await browser.new_page(**options)
            page.set_default_timeout(PATIENCE_MS)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
            yield page
            assert [each for each in complaints if not any(words in each for words in EXPECTED)] == []
        finally:
            await browser.close()


@asynccontextmanager
async def two_deployments(folder: Path) -> AsyncIterator[tuple[RunningGateway, Frontend, Frontend]]:
    needs_on_ci(CHROMIUM is not None, "Debian's package chromium")
    async with frontend(UNARY) as east, frontend(UNARY) as west:
        async with gateway(folder, [east.url, west.url], key=ADMIN) as gw:
            yield gw, east, west


async def signed_in(page: Page, gw: RunningGateway, first: str = "d0") -> None:
    await page.goto(f"{gw.internal_url}/console")
    await page.get_by_label("Key with the scope").fill(KEY)
    await page.get_by_role("button", name="Sign in").click()
    await page.get_by_role("article", name=first).wait_for()


async def test_a_wrong_key_is_told_and_a_right_one_is_kept_for_this_tab_only(tmp_path: Path) -> None:
    async with two_deployments(tmp_path) as (gw, _, _), browser_page() as page:
        await page.goto(f"{gw.internal_url}/console")
        await page.get_by_label("Key with the scope").fill("sk-wrong")
        await page.keyboard.press("Enter")
        await page.get_by_text("This API key is not known.").wait_for()
        assert await page.locator("#board").is_hidden()
        await signed_in(page, gw)
        await page.reload()
        await page.get_by_role("article", name="d0").wait_for()
        assert KEY not in page.url
        assert await page.evaluate("localStorage.length") == 0
        assert await page.context.cookies() == []
        await page.get_by_role("button", name="Sign out").click()
        assert await page.evaluate("sessionStorage.length") == 0
        assert await page.locator("#login").is_visible()


async def test_it_shows_live_what_the_fleet_does(tmp_path: Path) -> None:
    async with two_deployments(tmp_path) as (gw, east, _), browser_page() as page:
        await signed_in(page, gw)
        card = page.get_by_role("article", name="d0")
        await card.get_by_text("2P 3D").wait_for()
        for _ in range(5):
            async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
                assert response.status == 200
        east.token_times(0.2, 0.02, 500)
        await playwright.expect(page.locator("#models tbody th")).to_have_text("m")
        await playwright.expect(card.locator("dd").nth(8)).to_have_text("5")
        await playwright.expect(card.locator("dd").nth(4)).not_to_have_text("–")
        east.workers(0, 0)
        await page.get_by_text("d0: no decode worker.").wait_for()
        await playwright.expect(page.get_by_role("status")).to_contain_text("to look at")


async def test_the_drain_button_drains_and_undrains_and_asks_twice_for_the_last(tmp_path: Path) -> None:
    async with two_deployments(tmp_path) as (gw, east, west), browser_page() as page:
        await signed_in(page, gw)
        await page.get_by_role("button", name="Drain: d0", exact=True).click()
        await page.get_by_role("dialog").get_by_role("button", name="Drain").click()
        await page.get_by_role("article", name="d0").get_by_text("draining (order)").wait_for()
        async with gw.session.post(f"{gw.url}/chat/completions", json=CHAT) as response:
            assert response.status == 200
        assert (east.asked, west.asked) == (0, 1)
        await page.get_by_role("button", name="Drain: d1", exact=True).click()
        dialog = page.get_by_role("dialog")
        await dialog.get_by_role("button", name="Drain").click()
        await dialog.get_by_text("Nobody would be left to serve m").wait_for()
        await dialog.get_by_role("button", name="Cancel").click()
        assert not gw.state.snapshot.fleet.deployments["d1"].draining
        await page.get_by_role("button", name="Undrain: d0").click()
        await page.get_by_role("dialog").get_by_role("button", name="Undrain").click()
        await page.get_by_role("button", name="Drain: d0", exact=True).wait_for()
        assert not gw.state.snapshot.fleet.deployments["d0"].draining
        await playwright.expect(page.locator("#log li")).to_have_count(3)


async def test_a_weight_is_set_by_keyboard_alone(tmp_path: Path) -> None:
    async with two_deployments(tmp_path) as (gw, _, _), browser_page() as page:
        await signed_in(page, gw)
        await page.get_by_role("button", name="Weight: d1").focus()
        await page.wait_for_timeout(2500)
        assert await page.evaluate("document.activeElement.ariaLabel") == "Weight: d1", "a redraw keeps the focus"
        await page.keyboard.press("Enter")
        await page.keyboard.press("Control+A")
        await page.keyboard.type("0.25")
        await page.keyboard.press("Enter")
        await page.get_by_role("article", name="d1").get_by_text("weight ordered").wait_for()
        assert gw.state.snapshot.fleet.deployments["d1"].weight == 0.25


async def test_names_from_files_are_text_and_never_markup(tmp_path: Path) -> None:
    async with two_deployments(tmp_path) as (gw, _, _), browser_page() as page:
        await signed_in(page, gw)
        made = "document.createElement('div').innerHTML = '<b>x</b>'"
        with pytest.raises(playwright.Error, match="TrustedHTML"):
            await page.evaluate(f"() => {{ {made} }}")


@pytest.mark.slow
async def test_it_says_so_when_the_replica_no_longer_answers(tmp_path: Path) -> None:
    async with two_deployments(tmp_path) as (gw, _, _), browser_page() as page:
        await signed_in(page, gw)
        await page.route("**/admin/v1/overview", lambda route: route.abort())
        await page.get_by_text("what you see is old").wait_for()
        await page.unroute("**/admin/v1/overview")
        await playwright.expect(page.get_by_role("status")).to_contain_text("all well")


@pytest.mark.parametrize("scheme", ["dark", "light"])
async def test_text_is_readable_and_every_control_has_a_name(tmp_path: Path, scheme: str) -> None:
    async with two_deployments(tmp_path) as (gw, _, _), browser_page(color_scheme=scheme) as page:
        await signed_in(page, gw)
        assert await page.evaluate("document.documentElement.dataset.theme") == scheme
        await asyncio.sleep(0.5)
        assert await page.evaluate(LOW_CONTRAST) == []
        assert await page.evaluate(NAMELESS) == []


async def test_a_phone_needs_no_sideways_scrolling(tmp_path: Path) -> None:
    async with two_deployments(tmp_path) as (gw, _, _), browser_page(viewport={"width": 390, "height": 844}) as page:
        await signed_in(page, gw)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 390, await page.evaluate(TOO_WIDE)


TOO_WIDE = """() => [...document.querySelectorAll("body *")]
  .filter((each) => each.getBoundingClientRect().right > innerWidth)
  .map((each) => each.tagName + "." + each.className)"""

LOW_CONTRAST = """() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = (colour) => {
    const [r, g, b] = channels(colour).map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !element.checkVisibility()) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(ground(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found.push(`${element.tagName} "${element.textContent.slice(0, 30)}" ${ratio.toFixed(2)}`);
  }
  return found;
}"""
"""WCAG 2.2, 1.4.3: 4.5 to 1, as its own formula has it."""

NAMELESS = """() => [...document.querySelectorAll("button, input, [role=meter], [role=region]")]
  .filter((each) => each.checkVisibility())
  .filter((each) => !(each.ariaLabel || each.textContent.trim() || each.labels?.length || each.getAttribute("aria-labelledby")))
  .map((each) => each.outerHTML)"""
