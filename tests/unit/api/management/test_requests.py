"""The request log of an endpoint, out of its inference table: pages, one request, and who may read it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from serve_app.accounts import request_log
from serve_app.accounts.inference_table import InferenceTables
from serve_app.accounts.keys import new_key
from serve_app.errors import ModelNotFound
from tests.support.fakes_backend import FakeBackend
from tests.support.fakes_management import FakeManagement
from tests.support.gateway import CHAT, Gateway, bearer, chat_body, gateway

MANAGER, MANAGER_LINE = new_key("manager", ["inference", "manage"])
READER, READER_LINE = new_key("reader", ["inference"])
PATH = "/api/2.0/serving-endpoints/demo/requests"
TABLE = {"enabled": True, "table_name_prefix": "shared"}
ENDPOINTS = [
    {"name": "demo", "ai_gateway": {"inference_table_config": TABLE}},
    {"name": "org/other", "ai_gateway": {"inference_table_config": TABLE}},
]


@asynccontextmanager
async def logged(folder: Path, *batches: list[str]) -> AsyncIterator[Gateway]:
    """A gateway that has answered requests with these contents, each batch in a file of its own."""
    for batch in batches:
        tables = InferenceTables(folder, retention_days=30)
        async with gateway(endpoints=ENDPOINTS, payloads=tables) as g:
            for content in batch:
                g.backend.refuse = ModelNotFound("model", "gone") if content == "bad" else None
                message = {"role": "user", "content": content}
                await g.post(CHAT, chat_body(messages=[message]), headers={"x-request-id": content})
            await g.post(CHAT, chat_body(model="org/other"))
            g.backend.refuse = None
        await asyncio.to_thread(tables.close)
        await asyncio.sleep(1.0)  # a file's name has the second in which it was written
    tables = InferenceTables(folder, retention_days=30)
    keys = f"{MANAGER_LINE} {READER_LINE}"
    async with gateway(
        FakeBackend(), keys, endpoints=ENDPOINTS, payloads=tables, management=FakeManagement()
    ) as g:
        yield g
    await asyncio.to_thread(tables.close)


async def read(g: Gateway, path: str = PATH, **query: str) -> tuple[list[str], str]:
    """The client's ids of a page, and the token of the next one."""
    answer = await g.client.get(path, params=query, headers=bearer(MANAGER))
    assert answer.status_code == 200, answer.text
    page = answer.json()
    return [each["client_request_id"] for each in page["requests"]], page.get("next_page_token", "")


async def test_pages_lead_through_all_files_the_newest_first(tmp_path: Path) -> None:
    async with logged(tmp_path, ["a", "b", "c"], ["d", "bad"]) as g:
        assert await read(g) == (["bad", "d", "c", "b", "a"], "")
        found, token = await read(g, limit="2")
        assert found == ["bad", "d"]
        second, token = await read(g, limit="2", page_token=token)
        assert second == ["c", "b"]
        assert await read(g, limit="2", page_token=token) == (["a"], "")
        assert await read(g, failed="true") == (["bad"], "")
        assert await read(g, date="2020-01-01") == ([], "")


async def test_a_page_looks_into_a_bounded_number_of_files(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(request_log, "FILES_AT_ONCE", 1)
    async with logged(tmp_path, ["a", "bad"], ["b"]) as g:
        found, token = await read(g, failed="true")
        assert (found, bool(token)) == ([], True)
        assert await read(g, failed="true", page_token=token) == (["bad"], "")


async def test_one_request_has_its_bodies(tmp_path: Path) -> None:
    async with logged(tmp_path, ["a"]) as g:
        listed = await g.client.get(PATH, headers=bearer(MANAGER))
        (row,) = listed.json()["requests"]
        assert listed.json()["enabled"] is True
        assert (row["status_code"], row["served_entity_id"], row["route"]) == (200, "demo", CHAT)
        assert "request" not in row
        answer = await g.client.get(f"{PATH}/{row['databricks_request_id']}", headers=bearer(MANAGER))
        found = answer.json()
        assert {name: found[name] for name in row} == row
        assert json.loads(found["request"])["messages"][0]["content"] == "a"
        assert json.loads(found["response"])["object"] == "chat.completion"
        other = PATH.replace("demo", "org/other")
        for missing in (f"{PATH}/none", f"{other}/{row['databricks_request_id']}"):
            assert (await g.client.get(missing, headers=bearer(MANAGER))).status_code == 404


async def test_who_may_not_manage_reads_nothing_and_what_is_wrong_is_named(tmp_path: Path) -> None:
    async with logged(tmp_path) as g:
        for path in (PATH, f"{PATH}/x"):
            assert (await g.client.get(path, headers=bearer(READER))).status_code == 403
        assert (await g.client.get(f"{PATH[:-14]}none/requests", headers=bearer(MANAGER))).status_code == 404
        for name, value in (
            ("limit", "0"), ("limit", "201"), ("failed", "yes"), ("date", "today"), ("other", "1"),
            ("page_token", "../../etc"), ("page_token", "date=2026-01-01/part-1-a-1.parquet/x"),
        ):  # fmt: skip
            refused = await g.client.get(PATH, params={name: value}, headers=bearer(MANAGER))
            assert refused.status_code == 400
            assert name in refused.json()["message"]
