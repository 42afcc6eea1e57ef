"""The console in a real Chromium: signing in and out, the menu, the themes."""

from __future__ import annotations

from playwright.async_api import expect

from tests.console.conftest import MANAGER, Server
from tests.support.browser import Visit


async def test_a_stranger_signs_in_gets_to_the_playground_and_signs_out(
    stranger: Visit, server: Server
) -> None:
    page = stranger.page
    await stranger.goto("/console")
    await expect(page).to_have_url(f"{server.url}/console/sign-in?next=/console")
    await page.get_by_label("API key").fill(MANAGER)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page).to_have_url(f"{server.url}/console/playground")
    await page.get_by_role("button", name="Sign out").click()
    await expect(page).to_have_url(f"{server.url}/console/sign-in")
    await stranger.goto("/console")
    await expect(page).to_have_url(f"{server.url}/console/sign-in?next=/console")


async def test_a_wrong_key_is_refused_in_the_words_of_the_api(stranger: Visit, server: Server) -> None:
    page = stranger.page
    await stranger.goto("/console/sign-in")
    await page.get_by_label("API key").fill("sk-wrong")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_contain_text("the API key is not valid")
    stranger.forgive()  # the browser notes an answer of 401


async def test_no_script_can_read_the_key(visit: Visit) -> None:
    await visit.goto("/console")
    assert await visit.page.evaluate("document.cookie") == ""
    (cookie,) = await visit.context.cookies()
    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Strict"
    assert MANAGER not in cookie["value"]


async def test_the_theme_is_switched_and_kept(visit: Visit) -> None:
    page = visit.page
    await page.emulate_media(color_scheme="light")
    await visit.goto("/console")
    background = "getComputedStyle(document.body).backgroundColor"
    light = await page.evaluate(background)
    await page.get_by_role("button", name="Switch between light and dark").click()
    dark = await page.evaluate(background)
    assert dark != light
    await page.reload()
    assert await page.evaluate(background) == dark
    await page.emulate_media(color_scheme="dark")
    await page.evaluate("localStorage.clear()")
    await page.reload()
    assert await page.evaluate(background) == dark, "as the system has it"


async def test_without_keys_nobody_signs_in(open_visit: Visit) -> None:
    answer = await open_visit.goto("/console")
    assert answer.status == 200
    await expect(open_visit.page.get_by_text("no keys")).to_be_visible()
    await expect(open_visit.page.get_by_role("button", name="Sign out")).to_have_count(0)
