"""What holds for every page: nobody is shut out, nothing is too large, nothing leaves the machine."""

from __future__ import annotations

import gzip

import pytest
from axe_playwright_python.async_playwright import Axe

from serve_app.console.pages import PAGES
from tests.console.conftest import Server
from tests.console.places import EXPECTED, PLACES
from tests.support.browser import Visit

FIRST_PAGE_BYTES = 100_000
PHONE = {"width": 360, "height": 740}
# Serious and critical alone: the rest of axe's rules are advice about structure.
GRAVE = ("serious", "critical")


async def opened(visit: Visit, place: str) -> None:
    answer = await visit.goto(place)
    assert answer.status == EXPECTED.get(place, 200)
    if place in EXPECTED:
        visit.forgive()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("place", PLACES)
async def test_axe_finds_nothing_grave(visit: Visit, place: str, theme: str) -> None:
    await visit.page.emulate_media(color_scheme=theme)
    await opened(visit, place)
    found = await Axe().run(visit.page)
    grave = [each for each in found.response["violations"] if each["impact"] in GRAVE]
    assert not grave, [(each["id"], [node["html"] for node in each["nodes"]]) for each in grave]


@pytest.mark.parametrize("place", PLACES)
async def test_a_page_fits_a_phone(visit: Visit, place: str) -> None:
    await visit.page.set_viewport_size(PHONE)
    await opened(visit, place)
    assert await visit.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.parametrize("place", PLACES)
async def test_a_page_has_one_heading_a_title_and_its_place_in_the_menu(visit: Visit, place: str) -> None:
    await opened(visit, place)
    page = visit.page
    assert await page.locator("h1").count() == 1
    assert (await page.title()).endswith(" · serve-app")
    current = page.locator("nav [aria-current=page]")
    assert await current.count() == (place in {each.PATH for each in PAGES})


async def test_the_first_page_is_small(stranger: Visit, server: Server) -> None:
    """Everything of a first visit: the sign-in page and the first page behind it, as they cross the wire."""
    sizes: dict[str, int] = {}

    async def note(response) -> None:
        body = await response.body() if response.status == 200 else b""
        is_packed = response.headers.get("content-encoding") == "gzip"
        sizes[response.url] = len(gzip.compress(body)) if is_packed else len(body)

    stranger.page.on("response", note)
    await stranger.goto("/console/sign-in")
    await stranger.page.wait_for_load_state("networkidle")
    assert len(sizes) >= 4
    assert sum(sizes.values()) < FIRST_PAGE_BYTES, sizes
    assert all(url.startswith(f"{server.url}/console/") for url in sizes)


async def test_files_are_kept_and_asked_once(visit: Visit) -> None:
    await visit.goto("/console")
    first = {url for url in visit.asked if "/static/" in url}
    assert first
    visit.asked.clear()
    codes: list[int] = []
    visit.page.on(
        "response", lambda answer: codes.append(answer.status) if "/static/" in answer.url else None
    )
    answer = await visit.goto("/console")
    assert answer.status == 200
    for url in first:
        kept = await visit.context.request.get(url)
        assert kept.headers["cache-control"] == "public, max-age=31536000, immutable"


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
    found = await Axe().run(stranger.page)
    assert "label" in {each["id"] for each in found.response["violations"] if each["impact"] in GRAVE}
