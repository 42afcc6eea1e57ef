"""What a page of another origin can do to somebody who is signed in: nothing.

Two origins try: another host, and another port of the same host, which browsers count as the same site.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Page
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.types import Receive, Scope, Send

from tests.console.conftest import COOKIE, MANAGER, Server
from tests.support.browser import Visit
from tests.support.gateway import bearer, served


class Evil:
    """A server that answers every request with one page, and notes the cookies that it gets."""

    def __init__(self) -> None:
        self.markup = ""
        self.cookies: list[str] = []
        self.urls: dict[str, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        self.cookies.append(request.headers.get("cookie", ""))
        await HTMLResponse(f"<!doctype html><title>evil</title>{self.markup}")(scope, receive, send)


@pytest_asyncio.fixture(loop_scope="session")
async def evil() -> AsyncIterator[Evil]:
    app = Evil()
    async with served(app) as (_, port):
        app.urls = {"other host": f"http://localhost:{port}/", "other port": f"http://127.0.0.1:{port}/"}
        yield app


ORIGINS = pytest.mark.parametrize("origin", ["other host", "other port"])


async def lured(visit: Visit, evil: Evil, origin: str, markup: str) -> Page:
    """The signed-in browser opens the other origin's page."""
    evil.markup = markup
    await visit.page.goto(evil.urls[origin])
    return visit.page


async def names_of_keys(server: Server) -> set[str]:
    async with httpx.AsyncClient(base_url=server.url, headers=bearer(MANAGER), timeout=60) as client:
        return {key["name"] for key in (await client.get("/api/2.0/keys")).json()["keys"]}


@ORIGINS
async def test_no_page_can_frame_the_console(visit: Visit, evil: Evil, server: Server, origin: str) -> None:
    page = await lured(visit, evil, origin, f'<iframe src="{server.url}/console"></iframe>')
    await page.wait_for_load_state("networkidle")
    for frame in page.frames[1:]:
        assert await frame.locator(".top, form").count() == 0
    assert any("frame" in each.lower() for each in visit.complaints), "the browser says that it refused"
    visit.forgive()


@ORIGINS
async def test_no_page_can_change_anything(visit: Visit, evil: Evil, server: Server, origin: str) -> None:
    stolen = f"{server.url}/console/api/api/2.0/keys"
    markup = f"""<form method=post action="{server.url}/console/sign-out"><input name=csrf value=x></form>"""
    page = await lured(visit, evil, origin, markup)
    before = await names_of_keys(server)
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        await page.evaluate(
            """([url, kind]) => fetch(url, {method: "POST", mode: "no-cors", credentials: "include",
               headers: {"content-type": kind}, body: '{"name": "stolen"}'}).catch(() => {})""",
            [stolen, kind],
        )
    readable = """([url]) => fetch(url, {method: "POST", credentials: "include",
       headers: {"content-type": "application/json", "x-csrf-token": "x"}, body: "{}"})
       .then(() => "answered", () => "refused")"""
    assert await page.evaluate(readable, [stolen]) == "refused"
    async with page.expect_navigation():
        await page.evaluate("document.forms[0].submit()")
    assert await page.locator("h1").inner_text() == "Forbidden"
    assert await names_of_keys(server) == before
    visit.forgive()
    await visit.goto("/console")
    assert await page.get_by_role("button", name="Sign out").count() == 1, "still signed in"


@ORIGINS
async def test_no_page_can_read_anything(visit: Visit, evil: Evil, server: Server, origin: str) -> None:
    page = await lured(visit, evil, origin, f'<img src="{server.url}/console"><script>var stolen=1</script>')
    assert COOKIE not in await page.evaluate("document.cookie")
    for path in ("/console", "/console/api/v1/models", "/console/api/api/2.0/keys"):
        asked = """([url]) => fetch(url, {credentials: "include"}).then((a) => a.text(), () => "refused")"""
        assert await page.evaluate(asked, [f"{server.url}{path}"]) == "refused"
    # An opened window is an empty page of its opener's origin until the console's own page arrives.
    opened = """async ([url]) => {
        const other = window.open(url), until = Date.now() + 60000;
        let read = "";
        while ((read === "" || read === "TypeError") && Date.now() < until) {
            await new Promise((done) => setTimeout(done, 100));
            try { read = other.closed ? "closed" : other.document.body.innerText }
            catch (error) { read = error.name }
        }
        return read }"""
    assert await page.evaluate(opened, [f"{server.url}/console"]) in ("closed", "SecurityError")
    if origin == "other host":
        assert not any(COOKIE in each for each in evil.cookies)
    assert not any(MANAGER in each for each in evil.cookies), "a port shares cookies, and they tell no key"
    visit.forgive()
