"""What holds for every page: nobody is shut out, nothing is too large, nothing leaves the machine."""

from __future__ import annotations

import gzip
import re

import pytest

from serve_app.console.pages import PAGES
from tests.console.conftest import MANAGER, Server
from tests.console.everybody import PHONE, grave
from tests.console.places import EXPECTED, PLACES
from tests.support.browser import Visit

FIRST_PAGE_BYTES = 100_000
MENU = {page.PATH for page in PAGES}


async def opened(visit: Visit, place: str) -> None:
    answer = await visit.goto(place)
    assert answer.status == EXPECTED.get(place, 200)
    if place in EXPECTED:
        visit.forgive()


@pytest.mark.parametrize(
    "place",
    [pytest.param(place, marks=() if place in PLACES[::4] else pytest.mark.full) for place in PLACES],
)
async def test_a_page_is_for_everybody(visit: Visit, place: str) -> None:
    """Named, in its place in the menu, readable by machines in both themes, and on a phone."""
    page = visit.page
    await opened(visit, place)
    assert await page.locator("h1").count() == 1
    assert (await page.title()).endswith(" · serve-app")
    assert await page.locator(".top nav [aria-current=page]").count() == any(
        re.match(rf"{each}($|[/?])", place) for each in MENU
    )
    for theme in ("light", "dark"):
        await page.emulate_media(color_scheme=theme)
        assert await grave(page) == []
    await page.set_viewport_size(PHONE)
    assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


async def test_the_first_page_is_small(stranger: Visit, server: Server) -> None:
    """Everything of a first visit: the sign-in page and the first page behind it, as they cross the wire."""
    sizes: dict[str, int] = {}

    async def note(response) -> None:
        body = await response.body() if response.status == 200 else b""
        is_packed = response.headers.get("content-encoding") == "gzip"
        sizes[response.url] = len(gzip.compress(body)) if is_packed else len(body)

    stranger.page.on("response", note)
    await stranger.goto("/console/sign-in")
    await stranger.page.get_by_label("API key").fill(MANAGER)
    await stranger.page.get_by_role("button", name="Sign in").click()
    await stranger.page.wait_for_url("**/console/playground")
    await stranger.page.wait_for_load_state("networkidle")
    assert len(sizes) >= 4
    assert sum(sizes.values()) < FIRST_PAGE_BYTES, sizes
    assert all(url.startswith(f"{server.url}/console") for url in sizes)


async def test_without_scripts_a_page_can_be_read(visit: Visit, server: Server) -> None:
    context = await visit.context.browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await page.goto(f"{server.url}/console/sign-in")
    assert await page.get_by_label("API key").is_visible()
    await context.close()


async def test_axe_does_find_what_is_grave(stranger: Visit) -> None:
    await stranger.goto("/console/sign-in")
    await stranger.page.evaluate("document.querySelector('label[for=key]').remove()")
    await stranger.page.evaluate("document.querySelector('#key').removeAttribute('placeholder')")
    assert "label" in {rule for rule, _ in await grave(stranger.page)}
