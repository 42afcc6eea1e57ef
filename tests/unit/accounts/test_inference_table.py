"""Inference tables: one row for each request, as its client sent and got it, and never more than that."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pyarrow.parquet
import pytest

from serve_app.accounts.inference_table import InferenceTables
from serve_app.types import Usage
from serve_app.types.payload import Payload, TextBodies
from tests.support.fakes_backend import FakeBackend, embedder_info, model_info
from tests.support.gateway import CHAT, Gateway, bearer, chat_body, gateway
from tests.support.small_disk import fill, free, small_disk

DATABRICKS = [
    *("request_date", "databricks_request_id", "client_request_id", "request_time", "status_code"),
    *("sampling_fraction", "execution_duration_ms", "request", "response", "served_entity_id"),
    *("logging_error_codes", "requester"),
]
EMAIL = "john.doe@example.com"
KEY = "sk-alice-0123456789abcdef"
TABLE: dict[str, Any] = {
    "enabled": True,
    "catalog_name": "main",
    "schema_name": "logs",
    "table_name_prefix": "chat",
}


def rows(folder: Path, pattern: str = "**/*.parquet") -> list[dict[str, Any]]:
    """All rows of all files, oldest first."""
    found = [
        row for path in folder.glob(pattern) for row in pyarrow.parquet.ParquetFile(path).read().to_pylist()
    ]
    return sorted(found, key=lambda row: row["request_time"])


def payload(**fields: Any) -> Payload:
    base = Payload(
        folder=("main", "logs", "chat_payload"),
        id="1",
        client_id=None,
        started=time.time(),
        total_s=0.25,
        first_token_s=None,
        status=200,
        request=b"{}",
        response=(b"{}",),
        form=TextBodies(),
        redact=None,
        codes=(),
        endpoint="demo",
        entity="demo",
        route="/",
        key_id="alice",
        requester="alice",
        usage=Usage(),
    )
    return replace(base, **fields)


@asynccontextmanager
async def recorded(
    folder: Path, keys: str = "", guardrails: dict[str, Any] | None = None, table: dict[str, Any] = TABLE
) -> AsyncIterator[tuple[Gateway, InferenceTables]]:
    """A gateway with a table for `demo` and none for the others. The rows are there after the block."""
    tables = InferenceTables(folder, retention_days=30)
    settings = {"inference_table_config": table, "guardrails": guardrails}
    endpoints = [
        {"name": "demo", "ai_gateway": settings},
        {"name": "org/other"},
        {"name": "embedder", "task": "llm/v1/embeddings", "ai_gateway": {"inference_table_config": TABLE}},
    ]
    backend = FakeBackend(infos=[model_info(), model_info("org/other"), embedder_info()])
    try:
        async with gateway(backend, keys, endpoints=endpoints, payloads=tables) as g:
            yield g, tables
    finally:
        await asyncio.to_thread(tables.close)


async def test_a_row_is_what_the_client_sent_and_got(tmp_path: Path) -> None:
    async with recorded(tmp_path, keys=f"alice:inference:{sha256(KEY.encode()).hexdigest()}") as (g, tables):
        headers = {**bearer(KEY), "x-request-id": "mine-1"}
        whole = await g.post(CHAT, chat_body(), headers=headers)
        stream = await g.post(CHAT, chat_body(stream=True), headers=bearer(KEY))
        vectors = await g.post("/v1/embeddings", {"model": "embedder", "input": "Hi"}, headers=bearer(KEY))
        await g.post(CHAT, chat_body(model="org/other"), headers=bearer(KEY))
        await g.post(CHAT, chat_body(), headers=bearer("wrong"))
        assert tables.dropped == 0
    day = datetime.now(UTC).date()
    first, second, third = rows(tmp_path, f"main/logs/chat_payload/date={day}/*.parquet")
    assert list(first)[: len(DATABRICKS)] == DATABRICKS
    assert json.loads(first["request"]) == chat_body()
    assert first["response"] == whole.text
    assert whole.json()["id"].endswith(first["databricks_request_id"])
    assert (first["client_request_id"], first["status_code"], first["requester"]) == ("mine-1", 200, "alice")
    assert (first["request_date"], first["sampling_fraction"]) == (day, 1.0)
    assert (first["served_entity_id"], first["logging_error_codes"]) == ("demo", [])
    assert first["completion_tokens"] == whole.json()["usage"]["completion_tokens"]
    assert second["response"] == stream.text
    assert second["time_to_first_token_ms"] is not None
    assert third["response"] == vectors.text
    assert KEY not in str([first, second, third])


async def test_tables_are_read_as_partitioned_data(tmp_path: Path) -> None:
    async with recorded(tmp_path) as (g, _):
        await g.chat()
    table = pyarrow.dataset.dataset(tmp_path / "main/logs/chat_payload", partitioning="hive").to_table()
    assert table.num_rows == 1
    assert "date" in table.column_names


async def test_failures_have_rows_too(tmp_path: Path) -> None:
    async with recorded(tmp_path) as (g, _):
        g.backend.fail_after = 2
        broken = await g.chat(stream=True)
        g.backend.fail_after = 0
        refused = await g.chat()
        g.backend.fail_after = None
        large = await g.chat(messages=[{"role": "user", "content": "x" * 2**20}])
        assert large.status_code == 200
    first, second, third = rows(tmp_path)
    assert (first["status_code"], first["response"]) == (200, broken.text)
    assert (second["status_code"], second["response"]) == (500, refused.text)
    assert (third["request"], third["logging_error_codes"]) == (None, ["MAX_REQUEST_SIZE_EXCEEDED"])
    assert third["response"] == large.text


@pytest.mark.parametrize("behavior", ["MASK", "BLOCK"])
async def test_what_guardrails_find_is_in_no_table(tmp_path: Path, behavior: str) -> None:
    rules = {"pii": {"behavior": behavior}}
    async with recorded(tmp_path, guardrails={"input": rules, "output": rules}) as (g, _):
        g.backend.words = ("I am ", EMAIL[:5], EMAIL[5:], ".")
        await g.chat(messages=[{"role": "user", "content": f"I am {EMAIL}"}], user=EMAIL)
        await g.chat(stream=True)
    assert len(rows(tmp_path)) == 2
    for row in rows(tmp_path):
        assert EMAIL not in str(row)
        assert "john" not in str(row)
    assert "<EMAIL_ADDRESS>" in rows(tmp_path)[0]["request"]


async def test_a_full_disk_stops_no_request_and_lost_rows_are_counted(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 * 4096) as disk:
        tables = InferenceTables(disk / "tables", retention_days=30, max_bytes=20_000, flush_s=0.02)
        endpoints = [{"name": "demo", "ai_gateway": {"inference_table_config": TABLE}}]
        async with gateway(endpoints=endpoints, payloads=tables) as g:
            fill(disk)
            answered = 0
            async with asyncio.timeout(60):
                while tables.problem is None or not tables.dropped:
                    assert (await g.chat()).status_code == 200
                    answered += 1
                assert tables.problem == "No space left on device"
                dropped = tables.dropped
                page = (await g.client.get("/metrics")).text
                assert f"serve_app_inference_table_rows_dropped_total {float(dropped)}" in page
                free(disk)
                while tables.waiting:
                    await asyncio.sleep(0.01)
            await asyncio.to_thread(tables.close)
        assert len(rows(disk / "tables")) + dropped == answered
        assert not list((disk / "tables").rglob("*.tmp"))


def test_old_partitions_and_nothing_else_are_removed(tmp_path: Path) -> None:
    table, today = tmp_path / "main/logs/chat_payload", datetime.now(UTC).date()
    old, kept = (table / f"date={today - timedelta(days=days)}" for days in (31, 30))
    others = [table / "date=never", tmp_path / "main/logs/notes/date=2001-01-01"]
    for folder in (old, kept, *others):
        folder.mkdir(parents=True)
        (folder / "part-0.parquet").touch()
    tables = InferenceTables(tmp_path, retention_days=30)  # to which nobody writes any more
    deadline = time.monotonic() + 30
    while old.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    tables.close()
    assert not old.exists()
    assert all(folder.exists() for folder in (kept, *others))


def test_rows_that_come_while_others_are_written_wait_for_more_of_them(tmp_path: Path) -> None:
    flush_s, started = 0.2, time.monotonic()
    tables = InferenceTables(tmp_path, retention_days=30, flush_s=flush_s)
    for number in range(300):
        tables.add(payload(id=str(number)))
        time.sleep(0.003)
    tables.close()
    files = len(list(tmp_path.rglob("*.parquet")))
    assert len(rows(tmp_path)) == 300
    assert files <= (time.monotonic() - started) / flush_s + 2


def test_no_row_spoils_the_others(tmp_path: Path) -> None:
    def fails(body: str) -> str:
        raise RecursionError

    tables = InferenceTables(tmp_path, retention_days=30)
    tables.add(payload(redact=fails))
    tables.add(payload(id="2", redact=lambda body: '{"a": "\ud800"}'))
    tables.add(payload(id="3", request=b"\xff"))
    tables.close()
    first, second, third = rows(tmp_path)
    assert (first["request"], first["logging_error_codes"]) == (None, ["REQUEST_NOT_MASKED"])
    assert second["request"] == '{"a": "\\ud800"}'
    assert (third["request"], third["logging_error_codes"]) == (None, ["BODY_NOT_TEXT"])
    assert tables.dropped == 0


def test_rows_after_the_end_are_counted_as_lost(tmp_path: Path) -> None:
    tables = InferenceTables(tmp_path, retention_days=30)
    tables.add(payload())
    tables.close()
    tables.add(payload())
    assert (len(rows(tmp_path)), tables.dropped) == (1, 1)
