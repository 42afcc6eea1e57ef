"""Fifty strings that would run a script, stored and sent to every page: none runs, none becomes an element.

They are names, tags, comments, prompts, answers, errors, reasons of failures and lines of logs. What is
watched: functions that they call, the browser's reports of the policy, and the tree of each page.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final
from urllib.parse import quote

import httpx
import pytest_asyncio
from playwright.async_api import Page, expect

from serve_app.console.pages.endpoints.tabs import TABS
from serve_app.errors import ServeError
from tests.console.conftest import MANAGER, Server
from tests.console.hostile import FOREIGN, STRINGS, WATCH
from tests.console.places import PLACES
from tests.support.browser import Visit
from tests.support.gateway import CHAT, bearer, chat_body

ALL: Final = "\n".join(STRINGS)
ENDPOINTS: Final = "/api/2.0/serving-endpoints"
KEYS: Final = "/api/2.0/keys"
GOOD, BROKEN = "hostile", "hostile-broken"
# Events that hidden handlers wait for.
PROVOKE: Final = """() => { for (const each of document.querySelectorAll("main *"))
  for (const name of ["mouseover", "focus", "toggle", "load", "error", "begin"])
    each.dispatchEvent(new Event(name)); }"""


def entity(version: str = "") -> dict[str, str]:
    return {"entity_name": "demo", "entity_version": version, "workload_size": "Small"}


async def store(client: httpx.AsyncClient, server: Server) -> None:
    """Every string wherever the API keeps a text, and a request of a key whose user has such a name."""
    cluster = server.service.cluster
    cluster.failing["2"] = ALL
    tags = [{"key": f"t{number}", "value": string} for number, string in enumerate(STRINGS)]
    for name, version in ((GOOD, ""), (BROKEN, "2")):
        config = {"served_entities": [entity(version)]}
        body = {"name": name, "description": ALL[:200], "tags": tags, "config": config}
        made = await client.post(ENDPOINTS, json=body)
        assert made.status_code == 200, made.text
    for number, string in enumerate(STRINGS):
        body = {"name": f"hostile-{number}", "comment": string}
        if string.isprintable() and string.strip() == string:  # as principals must be
            body |= {"user": string, "groups": [string]}
        made = await client.post(KEYS, json=body)
        assert made.status_code == 200, made.text
    asked = {"json": chat_body(), "headers": bearer(made.json()["key"])}
    async with asyncio.timeout(60):
        while (await client.post(CHAT, **asked)).status_code != 200:
            await asyncio.sleep(0.05)  # until the gateway knows the key


async def remove(client: httpx.AsyncClient, server: Server) -> None:
    server.service.cluster.failing.clear()
    for name in (GOOD, BROKEN):
        await client.delete(f"{ENDPOINTS}/{name}")
    for number in range(len(STRINGS)):
        await client.delete(f"{KEYS}/hostile-{number}")


@pytest_asyncio.fixture(loop_scope="session")
async def hostile(visit: Visit, server: Server) -> AsyncIterator[Visit]:
    """A tab that watches, at a server that is full of hostile strings."""
    cluster, words = server.service.cluster, server.backend.words

    async def logs(app: str) -> str:
        return ALL

    usual, cluster.logs = cluster.logs, logs  # type: ignore[method-assign]
    async with httpx.AsyncClient(base_url=server.url, headers=bearer(MANAGER), timeout=60) as client:
        try:
            await store(client, server)
            server.backend.words = tuple(f"{string}\n\n" for string in STRINGS)
            await visit.context.add_init_script(WATCH)
            yield visit
        finally:
            cluster.logs = usual  # type: ignore[method-assign]
            server.backend.words, server.backend.refuse = words, None
            await remove(client, server)


async def check(page: Page) -> None:
    await page.evaluate(PROVOKE)
    assert await page.evaluate("window.hits") == [], page.url
    assert await page.evaluate(FOREIGN) == [], page.url


async def test_what_is_stored_is_text_on_every_page(hostile: Visit) -> None:
    page = hostile.page
    tabs = [f"/console/endpoints/{name}?tab={tab}" for name in (GOOD, BROKEN) for tab in TABS]
    keys = [f"/console/keys/hostile-{number}" for number in (0, 10, 28)]
    shown: dict[str, str] = {}
    for place in (*PLACES, *tabs, *keys, "/console/usage?by=user", "/console/usage?by=key"):
        await hostile.goto(place)
        await check(page)
        shown[place] = await page.locator("main").inner_text()
    hostile.forgive()  # what is not there is a 404
    # They are there, as they were written.
    assert "<img src=x onerror=hit()>" in shown["/console/keys"]
    assert "<script>hit()</script>" in shown[f"/console/endpoints/{BROKEN}?tab=logs"]


async def test_what_a_link_brings_is_text(visit: Visit) -> None:
    page = visit.page
    await visit.context.add_init_script(WATCH)
    for place in (each for each in PLACES if "?" not in each):
        fields = ("next", "tab", "q", "by", "period", "since", "until", "endpoint", "key", "model", "all")
        await visit.goto(place + "?" + "&".join(f"{field}={quote(ALL)}" for field in fields))
        await check(page)
    for place in ("/console/none", "/console/endpoints", "/console/keys"):
        await visit.goto(f"{place}/{quote(ALL, safe='')}")
        await check(page)
    await visit.goto("/console/sign-in?next=javascript:hit()")
    await check(page)
    visit.forgive()  # what is not there is a 404


async def test_what_a_model_or_an_error_says_is_text(hostile: Visit, server: Server) -> None:
    page = hostile.page
    await hostile.goto("/console/playground")
    await page.wait_for_selector("#playground[data-ready]")
    await page.locator("#prompt").fill(ALL)
    await page.keyboard.press("Control+Enter")
    await expect(page.locator(".turn").last).to_contain_text("<img src=x onerror=hit()>")
    await check(page)
    server.backend.refuse = ServeError(ALL)
    await page.locator("#prompt").fill("again")
    await page.keyboard.press("Control+Enter")
    await expect(page.locator("main")).to_contain_text("</title><script>hit()</script>")
    await check(page)
    await page.reload()
    await page.wait_for_selector("#playground[data-ready]")
    await check(page)
    hostile.forgive()  # an answer that is an error
