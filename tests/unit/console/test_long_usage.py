"""A report of thousands of sums: the page shows some at a time, and the CSV has all, in parts."""

from __future__ import annotations

import csv
import io
import time
from dataclasses import replace

import httpx

from serve_app.api.management.usage import CSV_ROWS
from serve_app.console.pages.usage import API, MOST_ROWS, PATH
from serve_app.control.database.database import Database
from serve_app.types.control import ShipUsage
from tests.support.gateway import gateway
from tests.support.ledger import LedgerPlane
from tests.unit.control.ledger.test_reports import MANAGER, RECORD


async def test_the_page_shows_some_sums_at_a_time(database: Database) -> None:
    plane = LedgerPlane(database)
    count = max(MOST_ROWS, CSV_ROWS) + 7
    records = tuple(
        replace(RECORD, id=f"{place:04}", key_id=f"key-{place:04}", started=time.time() - 1)
        for place in range(count)
    )
    await plane.do(ShipUsage(ended=records), MANAGER)
    async with gateway(management=plane) as g:

        async def page(query: str) -> str:
            answer: httpx.Response = await g.client.get(f"{PATH}?{query}", headers={"host": "127.0.0.1:8000"})
            assert answer.status_code == 200, answer.text
            assert f"<dd>{count}</dd>" in answer.text  # the total is of all
            return answer.text

        first, last = await page("by=key"), await page(f"by=key&offset={count - 7}")
        assert first.count("<tr>") == 1 + MOST_ROWS
        assert f"1 to {MOST_ROWS} of {count}" in first
        assert f"offset={MOST_ROWS}" in first
        assert ">Previous" not in first
        assert last.count("<tr>") == 1 + 7
        assert f"key-{count - 1:04}" in last
        assert ">Next" not in last
        assert (await page(f"by=key&offset={count}")).count("<tr>") == 1
        table = await g.client.get(API, params={"by": "key", "format": "csv"})
        assert len(list(csv.DictReader(io.StringIO(table.text)))) == count
