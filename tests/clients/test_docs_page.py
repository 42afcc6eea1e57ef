"""/docs in a real headless Chromium: it shows every operation, and nothing leaves the machine.

Needs a Chromium of the system, as Debian's package `chromium` has it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import async_playwright, expect

from serve_app.accounts.keys import new_key
from tests.support.browser import LOAD_MS, Visit, launch, needs_chromium
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import fake_app, served

KEY, LINE = new_key("reader")

# Of a browser of its own; the document that it shows is tested in tests/unit/api/openapi.
pytestmark = [pytest.mark.full, needs_chromium]


@pytest_asyncio.fixture
async def visit() -> AsyncIterator[Visit]:
    async with served(fake_app(FakeBackend(), LINE)) as (host, port), async_playwright() as playwright:
        browser = await launch(playwright)
        context = await browser.new_context(extra_http_headers={"authorization": f"Bearer {KEY}"})
        yield Visit(await context.new_page(), f"http://{host}:{port}")
        await browser.close()


async def test_the_page_shows_every_protocol_and_asks_nobody_else(visit: Visit) -> None:
    page = visit.page
    await visit.goto("/docs")
    for name in ("OpenAI", "Databricks", "MindIE", "OpenVINO Model Server", "Triton", "Questions", "Pages"):
        await expect(page.locator(f'h3[data-tag="{name}"]')).to_be_visible(timeout=LOAD_MS)
    assert visit.hosts() == {"127.0.0.1"}
    assert {urlsplit(each).path for each in visit.asked if not each.startswith("data:")} == {
        "/docs", "/docs/swagger-ui.css", "/docs/swagger-ui-bundle.js", "/docs/page.js", "/openapi.json",
    }  # fmt: skip
    assert visit.complaints == [], "nothing was refused by the page's policy"


async def test_an_operation_can_be_read_and_tried(visit: Visit) -> None:
    page = visit.page
    await visit.goto("/docs")
    await page.locator('h3[data-tag="Pages"]').click()
    await page.locator("#operations-Pages-get_livez .opblock-summary-control").first.click()
    await page.get_by_role("button", name="Try it out").click()
    await page.get_by_role("button", name="Execute").click()
    live = page.locator(".live-responses-table .response .response-col_status").first
    await expect(live).to_contain_text("200", timeout=LOAD_MS)
    assert visit.hosts() == {"127.0.0.1"}


async def test_without_a_key_there_is_no_page(visit: Visit) -> None:
    await visit.page.context.set_extra_http_headers({})
    assert (await visit.goto("/docs")).status == 401
