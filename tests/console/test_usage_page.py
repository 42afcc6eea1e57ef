"""The page of usage in a real Chromium, over a real ledger: totals, the picture, the table, the file."""

from __future__ import annotations

import asyncio
import csv
import io
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from playwright.async_api import expect

from serve_app.types.control import ShipUsage
from tests.console import everybody
from tests.console.conftest import MANAGER, READER, Server
from tests.support.browser import LOAD_MS, Visit
from tests.support.fake_cluster import OPERATOR
from tests.support.gateway import CHAT, bearer, chat_body
from tests.support.waiting import eventually
from tests.unit.control.ledger.test_reports import RECORD

expect.set_options(timeout=LOAD_MS)

REQUESTS = 3


async def spend(server: Server, key: str = MANAGER) -> None:
    """Some chats, and the time that their records take to the ledger."""
    async with httpx.AsyncClient(base_url=server.url, headers=bearer(key), timeout=60) as client:

        async def count() -> int:
            report = (await client.get("/api/2.0/usage?by=")).raise_for_status().json()
            return sum(sum(row["requests"].values()) for row in report["rows"])

        before = await count()
        for _ in range(REQUESTS):
            answer = await client.post(CHAT, json=chat_body())
            assert answer.status_code == 200, answer.text
        await eventually(count, before + REQUESTS)


async def test_totals_a_picture_a_table_and_a_file(visit: Visit, server: Server) -> None:
    page, today = visit.page, datetime.now(UTC).strftime("%Y-%m-%d")
    await spend(server)
    await visit.goto("/console/usage")
    await page.locator("summary").click()
    await page.get_by_label("key", exact=True).check()
    await page.get_by_label("day", exact=True).check()
    await page.get_by_role("button", name="Show").click()
    table = page.get_by_role("region", name="Usage table")
    rows = table.get_by_role("row").filter(has_text="manager").filter(has_text="demo")
    await expect(rows.last).to_contain_text(today)
    await expect(page.get_by_role("img", name="Tokens per day")).to_be_visible()
    await everybody.check(visit)
    assert await page.locator(".chart svg").first.locator("rect").count() == 2 * 7, "two parts for each day"
    async with page.expect_download() as started:
        await page.get_by_role("link", name="Download CSV").click()
    download = await started.value
    assert download.suggested_filename == "usage.csv"
    text = await asyncio.to_thread(Path(await download.path()).read_text, "utf-8")
    found = list(csv.DictReader(io.StringIO(text)))
    assert list(found[0])[:4] == ["endpoint", "entity", "key", "day"]
    shown = sum(int(text) for text in await table.locator("tbody td:nth-child(5)").all_inner_texts())
    assert shown == sum(int(each["requests"]) for each in found)
    assert shown >= REQUESTS
    await page.get_by_label("Endpoint", exact=True).select_option("demo")
    await page.get_by_label("From", exact=True).fill("2020-01-01")
    await page.get_by_label("to", exact=True).fill("2020-01-02")
    await page.get_by_role("button", name="Show").click()
    await expect(page.get_by_text("No requests in this period.")).to_be_visible()
    await page.get_by_role("link", name="24 hours").click()
    await expect(page.get_by_label("Endpoint", exact=True)).to_have_value("demo")


async def test_money_is_drawn_by_key(visit: Visit, server: Server) -> None:
    """The fake service has no prices, so the ledger is given what two keys spent."""
    now = time.time()
    ended = tuple(
        replace(RECORD, id=f"money-{place}", key_id=key, started=now, cost=cost, currency="USD")
        for place, (key, cost) in enumerate([("buyer", 3.0), ("helper", 1.5), ("buyer", 0.25)])
    )
    await server.service.plane.do(ShipUsage(ended=ended), OPERATOR)
    page = visit.page
    await visit.goto("/console/usage")
    chart = page.locator("figure", has_text="Cost by key")
    await expect(chart.locator(".legend")).to_have_text(["buyer 3.25 USD", "helper 1.50 USD"])
    await expect(chart.get_by_role("img", name="Cost by key per day")).to_be_visible()
    heights = await chart.locator("rect").evaluate_all(
        "(all) => all.map((each) => each.height.baseVal.value)"
    )
    searched, supported = heights[-2:]
    assert searched + supported == pytest.approx(120)
    assert searched > supported > 0
    await page.get_by_label("Key", exact=True).select_option("helper")
    await page.get_by_role("button", name="Show").click()
    await expect(chart.locator(".legend")).to_have_text(["helper 1.50 USD"])


async def test_the_api_refuses_in_its_own_words(visit: Visit) -> None:
    answer = await visit.goto("/console/usage?since=yesterday")
    assert answer.status == 400
    await expect(visit.page.get_by_role("alert")).to_contain_text("since: must be an ISO date")
    visit.complaints.clear()


async def test_another_key_sees_its_own_usage_alone(reader: Visit, server: Server) -> None:
    await spend(server)
    await spend(server, READER)
    await reader.goto("/console/usage?by=key")
    await expect(reader.page.get_by_text("You see the usage of your own key.")).to_be_visible()
    table = reader.page.get_by_role("region", name="Usage table")
    await expect(table.get_by_role("rowheader")).to_have_text(["reader"])
