"""The console in a real Chromium over a server on Ray: an endpoint's whole life, watched on the page Live."""

from __future__ import annotations

import asyncio
import csv
import io
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from playwright.async_api import Locator, Page, async_playwright, expect

from tests.control.server import MODEL, Controlled, controlled, small_file
from tests.support.browser import LOAD_MS, Visit, launch, needs_chromium
from tests.support.gateway import CHAT, bearer, chat_body
from tests.support.ray_cluster import Cluster
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.ray,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
    needs_chromium,
]

NAME: Final = "harbor"
BEFORE: Final = 100  # users that ask at 90:10; that none of them comes to `new` has a chance of 3 in 100,000
AFTER: Final = 200  # users that ask at 50:50
AT_ONCE: Final = 6
FEW: Final = 0.25  # over four deviations above 10 % of 100 users, and below what all of them make: 37 %
WINDOW_S: Final = 300
QUESTION: Final = "Tell me a story."


@asynccontextmanager
async def tab(made: Controlled) -> AsyncIterator[Visit]:
    """A tab at the server, which complains of nothing and asks nobody else."""
    async with async_playwright() as playwright:
        browser = await launch(playwright)
        context = await browser.new_context()
        visit = Visit(await context.new_page(), str(made.server.client.base_url).rstrip("/"))
        yield visit
        await browser.close()
    assert visit.complaints == []
    assert visit.hosts() <= {"127.0.0.1", "localhost"}


async def create(visit: Visit, versions: tuple[str, str], units: str) -> None:
    """Make NAME with the entities `old` and `new`, at 90:10, and wait until it serves."""
    page = visit.page
    await visit.goto("/console/endpoint-new")
    await page.get_by_label("Name", exact=True).fill(NAME)
    await page.get_by_role("button", name="Add an entity").click()
    for number, (name, version, share) in enumerate(
        zip(("old", "new"), versions, ("90", "10"), strict=True), 1
    ):
        fields = page.get_by_role("group", name=f"Served entity {number}")
        await fields.get_by_label("Model", exact=True).fill(MODEL)
        await fields.get_by_label("Version").fill(version)
        await fields.get_by_label("Name in the endpoint").fill(name)
        await fields.get_by_label("Units").fill(units)
        await fields.get_by_label("Traffic, %").fill(share)
    await page.get_by_role("button", name="Create endpoint").click()
    await expect(page.get_by_role("heading", name="Move traffic")).to_be_visible(timeout=2 * LOAD_MS)
    await expect(served(page, "new")).to_contain_text("10 %", timeout=LOAD_MS)


async def move_to_half(visit: Visit) -> None:
    page = visit.page
    await visit.goto(f"/console/endpoints/{NAME}")
    await page.get_by_label("old, %").fill("50")
    await page.get_by_label("new, %").fill("50")
    await page.get_by_role("button", name="Move traffic").click()
    await expect(page.get_by_text("Traffic moved.")).to_be_visible(timeout=LOAD_MS)
    await expect(served(page, "new")).to_contain_text("50 %", timeout=LOAD_MS)
    await expect(page.locator("#state")).not_to_have_attribute("hx-trigger", "every 2s", timeout=LOAD_MS)


def served(page: Page, entity: str) -> Locator:
    return page.get_by_role("region", name="Serving: entities").get_by_role("row").filter(has_text=entity)


async def ask(made: Controlled, count: int, headers: dict[str, str]) -> Counter[int]:
    """Short chats of `count` users, a few at once. How many got which status."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(user: int) -> int:
        async with gate:
            body, sent = chat_body(model=NAME, max_tokens=1), {**headers, "x-routing-key": str(user)}
            return (await made.server.client.post(CHAT, json=body, headers=sent)).status_code

    return Counter(await asyncio.gather(*(one(user) for user in range(count))))


async def rate(page: Page, entity: str) -> float:
    """Requests a second of an entity over five minutes, as the page Live shows them."""
    row = page.locator("#figures tbody tr").filter(has=page.get_by_text(entity, exact=True))
    if not await row.count():
        return 0.0
    text = await row.locator("td").first.inner_text()
    return float(text) if text.replace(".", "", 1).isdigit() else 0.0


async def until_live_shows(visit: Visit, is_wanted: Callable[[float], bool]) -> None:
    """Wait until the share of `new` on the page Live is as wanted: requests show there seconds after them."""
    page = visit.page
    await visit.goto(f"/console/live?endpoint={NAME}")
    await page.get_by_label("Last").select_option(str(WINDOW_S))

    async def shows() -> bool:
        old, new = await rate(page, "old"), await rate(page, "new")
        return old > 0 and is_wanted(new / (old + new))

    await eventually(shows, True)


async def story(visit: Visit, made: Controlled, headers: dict[str, str]) -> None:
    """Requests at 90:10, the traffic moved to 50:50, more requests; and what Live shows of both."""
    assert await ask(made, BEFORE, headers) == {200: BEFORE}
    await until_live_shows(visit, lambda share: 0 < share < FEW)
    await move_to_half(visit)

    async def split() -> dict[str, int]:
        """By which the gateway routes: it learns a moment after the control plane has decided."""
        found = (await made.server.client.get(f"/v1/models/{NAME}", headers=headers)).json()
        return {each["name"]: each["traffic"] for each in found["served_entities"]}

    await eventually(split, {"old": 50, "new": 50})
    assert await ask(made, AFTER, headers) == {200: AFTER}
    await until_live_shows(visit, lambda share: share > FEW)


async def compare(visit: Visit, made: Controlled, headers: dict[str, str]) -> None:
    """One prompt to both entities beside each other. Each answer is what that entity says by itself.

    `headers`: of the key `admin`, with which the visitor signed in, and which asked nothing before.
    """
    page = visit.page
    asked = {"model": NAME, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    alone: dict[str, str] = {}
    for name in ("old", "new"):
        direct = {**headers, "x-served-entity": name}
        answer = await made.server.client.post(CHAT, json=asked, headers=direct)
        assert answer.status_code == 200, answer.text
        alone[name] = answer.json()["choices"][0]["message"]["content"]
    assert alone["old"] != alone["new"]
    await visit.goto(f"/console/endpoints/{NAME}")
    await page.get_by_role("link", name="Try old in the Playground").click()
    await page.locator("#playground[data-ready]").wait_for()
    await page.get_by_role("button", name="Compare").click()
    await expect(page.get_by_label("Served entity of column 2")).to_have_value("new", timeout=LOAD_MS)
    await page.locator("#options details").evaluate_all("all => all.forEach(each => { each.open = true })")
    await page.locator("#options [data-option=temperature]").fill("0")
    await page.locator("#prompt").fill(QUESTION)
    await page.get_by_role("button", name="Send").click()
    for column, name in enumerate(("old", "new"), 1):
        log = page.get_by_role("log", name=f"Conversation of column {column}")
        figures = log.locator(".turn-figures div", has_text="Entity")
        await expect(figures).to_contain_text(name, timeout=LOAD_MS)
        await expect(log.locator(".answer-text").first).to_have_text(alone[name], timeout=LOAD_MS)

    async def recorded() -> dict[str, int]:
        params = {"by": "entity", "endpoint": NAME, "key": "admin"}
        report = (await made.server.client.get("/api/2.0/usage", params=params, headers=headers)).json()
        return {row["entity"]: sum(row["requests"].values()) for row in report["rows"]}

    await eventually(recorded, {"old": 2, "new": 2})  # the ledger says who was asked


async def exported(visit: Visit) -> Counter[str]:
    """Requests by entity of NAME, in the file that the page of usage gives."""
    page = visit.page
    await visit.goto(f"/console/usage?period=1d&endpoint={NAME}&by=entity")
    async with page.expect_download() as started:
        await page.get_by_role("link", name="Download CSV").click()
    text = await asyncio.to_thread(Path(await (await started.value).path()).read_text, "utf-8")
    return Counter({row["entity"]: int(row["requests"]) for row in csv.DictReader(io.StringIO(text))})


async def delete(visit: Visit) -> None:
    page = visit.page
    await visit.goto(f"/console/endpoints/{NAME}?tab=settings")
    await page.get_by_label(f"Type {NAME} to confirm").fill(NAME)
    await page.get_by_role("button", name="Delete endpoint").click()
    await expect(page.get_by_text("Endpoint deleted.")).to_be_visible(timeout=LOAD_MS)


@pytest.mark.full  # the pages are tested in tests/console, the server in test_endpoints.py
async def test_an_endpoint_is_made_split_watched_and_counted(controlled_server: Controlled) -> None:
    """On the operator's replicas, without keys."""
    async with tab(controlled_server) as visit:
        await create(visit, ("1", "1"), "")
        await story(visit, controlled_server, {})

        async def total() -> int:
            return (await exported(visit)).total()

        await eventually(total, BEFORE + AFTER)
        assert set(await exported(visit)) == {"old", "new"}
        await delete(visit)


@pytest.mark.full
async def test_two_versions_and_keys_in_one_session(ray_cluster: Cluster, tmp_path: Path) -> None:
    """The first key closes the server; the rest is done with it, on replicas of the endpoint's own.

    Both versions are asked beside each other in the Playground.
    """
    async with controlled(ray_cluster, small_file(), tmp_path) as made, tab(made) as visit:
        page = visit.page
        admin = await new_key(visit, "admin", "manage", "routing")
        await page.get_by_role("link", name="Sign in").click()
        await page.get_by_label("API key").fill(admin)
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_role("button", name="Sign out")).to_be_visible(timeout=LOAD_MS)
        await create(visit, ("1", "2"), "1")
        client = await new_key(visit, "client")

        async def status() -> int:
            (code,) = await ask(made, 1, bearer(client))
            return code

        await eventually(status, 200)
        await story(visit, made, bearer(client))
        await compare(visit, made, bearer(admin))
        await visit.goto("/console/keys")
        await page.get_by_role("button", name="Revoke client").click()
        await page.get_by_role("button", name="Revoke this key").click()
        await expect(page.get_by_text("Key revoked.")).to_be_visible(timeout=LOAD_MS)
        await eventually(status, 401)
        assert set(await exported(visit)) == {"old", "new"}
        await delete(visit)


async def new_key(visit: Visit, name: str, *scopes: str) -> str:
    """Make a key by the form. Returns what is shown of it."""
    page = visit.page
    await visit.goto("/console/key-new")
    await page.get_by_label("Name", exact=True).fill(name)
    for scope in scopes:
        await page.get_by_label(scope, exact=True).check()
    await page.get_by_role("button", name="Create key").click()
    secret: str = await page.locator("#secret").inner_text()
    return secret
