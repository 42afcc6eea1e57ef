"""/docs in a real headless Chromium: it shows every operation, and nothing leaves the machine.

Needs a Chromium of the system, as Debian's package `chromium` has it.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Page, async_playwright, expect

from serve_app.accounts.keys import new_key
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import fake_app, served

BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM: Final = next((path for name in BROWSERS if (path := shutil.which(name))), None)
KEY, LINE = new_key("reader")
LOAD_MS: Final = 60_000

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")


class Visit:
    """One page, everything that it asked for, and everything that it complained of."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.asked: list[str] = []
        self.complaints: list[str] = []
        page.context.on("request", lambda request: self.asked.append(request.url))
        page.on("console", lambda message: self._note(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _note(self, kind: str, text: str) -> None:
        if kind == "error":
            self.complaints.append(text)


@pytest_asyncio.fixture
async def visit() -> AsyncIterator[Visit]:
    async with served(fake_app(FakeBackend(), LINE)) as (host, port), async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=CHROMIUM,
            # No name is resolved: whatever is not loopback would fail, and be seen.
            args=["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
        )
        context = await browser.new_context(extra_http_headers={"authorization": f"Bearer {KEY}"})
        yield Visit(await context.new_page(), f"http://{host}:{port}")
        await browser.close()


async def test_the_page_shows_every_protocol_and_asks_nobody_else(visit: Visit) -> None:
    page = visit.page
    await page.goto(f"{visit.url}/docs", timeout=LOAD_MS)
    for name in ("OpenAI", "Databricks", "MindIE", "OpenVINO Model Server", "Triton", "Questions", "Pages"):
        await expect(page.locator(f'h3[data-tag="{name}"]')).to_be_visible(timeout=LOAD_MS)
    assert {urlsplit(each).hostname for each in visit.asked if not each.startswith("data:")} == {"127.0.0.1"}
    assert {urlsplit(each).path for each in visit.asked if not each.startswith("data:")} == {
        "/docs", "/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/docs/page.js", "/openapi.json",
    }  # fmt: skip
    assert visit.complaints == [], "nothing was refused by the page's policy"


async def test_an_operation_can_be_read_and_tried(visit: Visit) -> None:
    page = visit.page
    await page.goto(f"{visit.url}/docs", timeout=LOAD_MS)
    await page.locator('h3[data-tag="Pages"]').click(timeout=LOAD_MS)
    await page.locator("#operations-Pages-get_livez .opblock-summary-control").first.click(timeout=LOAD_MS)
    await page.get_by_role("button", name="Try it out").click(timeout=LOAD_MS)
    await page.get_by_role("button", name="Execute").click(timeout=LOAD_MS)
    live = page.locator(".live-responses-table .response .response-col_status").first
    await expect(live).to_contain_text("200", timeout=LOAD_MS)
    assert {urlsplit(each).hostname for each in visit.asked if not each.startswith("data:")} == {"127.0.0.1"}


async def test_without_a_key_there_is_no_page(visit: Visit) -> None:
    await visit.page.context.set_extra_http_headers({})
    answer = await visit.page.goto(f"{visit.url}/docs", timeout=LOAD_MS)
    assert answer is not None
    assert answer.status == 401
