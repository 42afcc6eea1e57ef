"""A report of thousands of sums: the page shows the first of them, and the CSV has all."""

from __future__ import annotations

import csv
import io
import time
from dataclasses import replace

import httpx

from serve_app.console.pages.usage import API, MOST_ROWS, PATH
from serve_app.control.database.database import Database
from serve_app.types.control import ShipUsage
from tests.support.gateway import gateway
from tests.support.ledger import LedgerPlane
from tests.unit.control.ledger.test_reports import MANAGER, RECORD


async def test_the_page_shows_the_first_sums_and_says_how_many_more_there_are(database: Database) -> None:
    plane = LedgerPlane(database)
    records = tuple(
        replace(RECORD, id=f"{place:04}", key_id=f"key-{place:04}", started=time.time() - 1)
        for place in range(MOST_ROWS + 7)
    )
    await plane.do(ShipUsage(ended=records), MANAGER)
    async with gateway(management=plane) as g:
        headers = {"host": "127.0.0.1:8000"}
        page: httpx.Response = await g.client.get(PATH, params={"by": "key"}, headers=headers)
        assert page.status_code == 200, page.text
        assert page.text.count("<tr>") == 1 + MOST_ROWS
        assert f"the first {MOST_ROWS}, and 7 more in the CSV" in page.text
        table = await g.client.get(API, params={"by": "key", "format": "csv"})
        assert len(list(csv.DictReader(io.StringIO(table.text)))) == MOST_ROWS + 7
