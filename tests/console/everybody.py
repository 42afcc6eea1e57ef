"""Whether a page that has something to show shuts nobody out: in both themes, and on a phone."""

from __future__ import annotations

from tests.console.test_every_page import PHONE, grave
from tests.support.browser import Visit

DESK = {"width": 1280, "height": 720}


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
