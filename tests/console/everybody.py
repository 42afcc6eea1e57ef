"""Whether a page that has something to show shuts nobody out: in both themes, and on a phone."""

from __future__ import annotations

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

from tests.support.browser import Visit

DESK = {"width": 1280, "height": 720}
PHONE = {"width": 360, "height": 740}
# Serious and critical alone: the rest of axe's rules are advice about structure.
GRAVE = ("serious", "critical")


async def grave(page: Page) -> list[tuple[str, list[str]]]:
    """What axe finds that shuts people out: the rule, and the elements."""
    found = (await Axe().run(page)).response["violations"]
    return [
        (each["id"], [node["html"] for node in each["nodes"]]) for each in found if each["impact"] in GRAVE
    ]


async def check(visit: Visit) -> None:
    """The page as it is. Leaves the tab as wide as a desk has it, in the light theme."""
    page = visit.page
    for theme in ("dark", "light"):
        await page.emulate_media(color_scheme=theme)
        assert await grave(page) == [], (page.url, theme)
    await page.set_viewport_size(PHONE)
    assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], page.url
    await page.set_viewport_size(DESK)
    assert await page.locator("h1").count() == 1
