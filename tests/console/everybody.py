"""Whether a page that has something to show shuts nobody out: in both themes, and on a phone."""

from __future__ import annotations

from typing import Final

from axe_playwright_python.async_playwright import Axe

from tests.support.browser import Visit

# Serious and critical alone: the rest of axe's rules are advice about structure.
GRAVE: Final = ("serious", "critical")
PHONE_PX: Final = 360


async def check(visit: Visit) -> None:
    """The page as it is. Leaves the tab at its former size, in the light theme."""
    page = visit.page
    for theme in ("dark", "light"):
        await page.emulate_media(color_scheme=theme)
        found = (await Axe().run(page)).response["violations"]
        grave = [each for each in found if each["impact"] in GRAVE]
        assert not grave, (page.url, theme, [(each["id"], each["nodes"][0]["html"]) for each in grave])
    size = page.viewport_size or {"width": 1280, "height": 720}
    await page.set_viewport_size({"width": PHONE_PX, "height": 740})
    assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE_PX, page.url
    await page.set_viewport_size({"width": size["width"], "height": size["height"]})
    assert await page.locator("h1").count() == 1
