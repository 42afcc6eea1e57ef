"""The pages of keys in a real Chromium: a key is made, shown once, changed and revoked."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import httpx
import pytest_asyncio
from playwright.async_api import Locator, Page, expect

from serve_app.types.control import ListKeys, RevokeKey
from tests.console import everybody
from tests.console.conftest import Server
from tests.support.browser import LOAD_MS, Visit
from tests.support.fake_cluster import OPERATOR
from tests.support.gateway import CHAT, bearer, chat_body
from tests.support.waiting import eventually

expect.set_options(timeout=LOAD_MS)

NAME = "search"


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def nothing_left(server: Server) -> AsyncIterator[None]:
    """Keys of one test have ended before the next."""
    yield
    for key in (await server.service.plane.do(ListKeys(), OPERATOR)).keys:
        await server.service.plane.do(RevokeKey(id=key.id), OPERATOR)


def row(page: Page, name: str = NAME) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name))


async def status(server: Server, key: str, model: str = "demo") -> int:
    """Of a chat with `key`."""
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
        return (await client.post(CHAT, json=chat_body(model=model), headers=bearer(key))).status_code


async def create(visit: Visit) -> str:
    """Make the key by the form. Returns what is shown of it."""
    page = visit.page
    await visit.goto("/console/key-new")
    await page.get_by_label("Name", exact=True).fill(NAME)
    await page.get_by_label("Expires after, days").fill("30")
    await page.get_by_label("demo", exact=True).check()
    await page.get_by_label("Groups").fill("sea, land")
    await page.get_by_label("Monthly budget").fill("200")
    await page.get_by_role("button", name="Create key").click()
    secret: str = await page.locator("#secret").inner_text()
    return secret


async def test_a_key_is_made_shown_once_and_revoked(visit: Visit, server: Server) -> None:
    page = visit.page
    secret = await create(visit)
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.get_by_role("button", name="Copy").click()
    assert await page.evaluate("navigator.clipboard.readText()") == secret
    await eventually(lambda: status(server, secret), 200)
    assert await status(server, secret, "org/other") == 404, "the key has one endpoint"

    await page.get_by_role("link", name="Back to keys").click()
    assert secret not in await page.content()
    for words in (secret[:8], "land, sea", "inference", "demo", "200.00 USD", "in 30 d"):
        await expect(row(page)).to_contain_text(words)

    await page.get_by_role("button", name=f"Revoke {NAME}").click()
    await everybody.check(visit)
    await page.get_by_role("button", name="Keep it").click()
    await expect(page.get_by_role("button", name="Revoke this key")).to_have_count(0)
    assert await status(server, secret) == 200
    await page.get_by_role("button", name=f"Revoke {NAME}").click()
    await page.get_by_role("button", name="Revoke this key").click()
    await expect(page.get_by_text("Key revoked.")).to_be_visible()
    await expect(row(page)).to_have_count(0)
    await eventually(lambda: status(server, secret), 401)
    await page.get_by_role("link", name="Show expired and revoked keys too").click()
    await expect(row(page).first).to_contain_text("revoked")
    await expect(row(page).first.get_by_role("button")).to_have_count(0)


async def test_a_key_is_rotated_and_its_list_tells_use_and_spending(visit: Visit, server: Server) -> None:
    page = visit.page
    secret = await create(visit)
    await eventually(lambda: status(server, secret), 200)
    await visit.goto("/console/keys")
    await expect(row(page)).to_contain_text("0.00 of 200.00 USD")
    await expect(row(page, "manager")).to_contain_text("key file")
    await expect(row(page, "manager").get_by_role("button")).to_have_count(0)
    async with asyncio.timeout(60):
        while "never" in await row(page).locator("td").nth(4).inner_text():
            await page.reload()  # until the ledger has the request
    await page.get_by_role("button", name=f"Rotate {NAME}").click()
    await page.get_by_label("The old secret stops working").select_option("in an hour")
    await everybody.check(visit)
    await page.get_by_role("button", name="Rotate this key").click()
    await expect(page.get_by_text("The old secret stops working in an hour.")).to_be_visible()
    new = await page.locator("#secret").inner_text()
    await eventually(lambda: status(server, new), 200)
    assert await status(server, secret) == 200
    await page.get_by_role("link", name="Back to keys").click()
    await expect(row(page)).to_have_count(2)
    await expect(row(page).filter(has_text=secret[:8])).to_contain_text(re.compile("in (60 min|1 h)"))
    await expect(row(page).filter(has_text=secret[:8])).to_contain_text("old secret")
    await page.get_by_role("button", name=f"Rotate {NAME}").click()
    await page.get_by_label("The old secret stops working").select_option("at once")
    await page.get_by_role("button", name="Rotate this key").click()
    await page.get_by_role("link", name="Back to keys").click()
    await eventually(lambda: status(server, new), 401)


async def test_a_key_is_changed(visit: Visit, server: Server) -> None:
    page = visit.page
    secret = await create(visit)
    await visit.goto("/console/keys")
    await page.get_by_role("link", name=NAME, exact=True).click()
    await expect(page.get_by_label("Groups")).to_have_value("land, sea")
    await expect(page.get_by_label("inference", exact=True)).to_be_checked()
    await page.get_by_label("metrics", exact=True).check()
    await page.get_by_label("demo", exact=True).uncheck()
    await page.get_by_label("Monthly budget").fill("")
    await page.get_by_label("Monthly soft budget").fill("12.5")
    await page.get_by_label("Comment").fill("<b>for search</b>")
    await page.get_by_role("button", name="Save key").click()
    await expect(page.get_by_text("Key saved.")).to_be_visible()
    for words in ("inference, metrics", "every endpoint", "<b>for search</b>"):
        await expect(row(page)).to_contain_text(words)
    await expect(row(page)).not_to_contain_text("USD")
    await eventually(lambda: status(server, secret, "org/other"), 200)


async def test_a_refusal_keeps_what_was_typed(visit: Visit) -> None:
    page = visit.page
    await visit.goto("/console/key-new")
    await page.get_by_label("Name", exact=True).fill("two words")
    await page.get_by_label("Groups").fill("sea")
    await page.get_by_label("routing", exact=True).check()
    await page.get_by_role("button", name="Create key").click()
    await expect(page.get_by_role("alert")).to_contain_text("name: must be 1 to 64 characters")
    await expect(page.get_by_label("Name", exact=True)).to_have_attribute("aria-invalid", "true")
    await expect(page.get_by_label("Groups")).to_have_value("sea")
    await expect(page.get_by_label("routing", exact=True)).to_be_checked()
    await page.get_by_label("Name", exact=True).fill("manager")
    await page.get_by_role("button", name="Create key").click()
    await expect(page.get_by_role("alert")).to_contain_text("is called manager")
    visit.complaints.clear()  # the browser notes answers that are errors


async def test_without_the_scope_the_api_says_so(reader: Visit) -> None:
    answer = await reader.goto("/console/keys")
    assert answer.status == 403
    await expect(reader.page.get_by_role("alert")).to_contain_text("manage")
    await expect(reader.page.get_by_role("link", name="New key")).to_have_count(0)
    reader.complaints.clear()


async def test_a_server_without_keys_says_what_the_first_one_does(open_visit: Visit) -> None:
    await open_visit.goto("/console/keys")
    await expect(open_visit.page.get_by_text("The first key ends that")).to_be_visible()
