"""A gateway whose usage journal is on a disk that is full: it answers, says so, and loses no record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from serve_app.accounts.journal import Journal
from serve_app.accounts.journal_reader import read
from tests.support.gateway import CHAT, Gateway, gateway
from tests.support.small_disk import fill, free, small_disk, take_inodes

WAIT_S = 30.0
PAGE = 4096
NO_SPACE = "No space left on device"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 64 * PAGE) as folder:
        yield folder


@asynccontextmanager
async def metered(
    disk: Path, max_backlog_bytes: int = 2**20, **config: object
) -> AsyncIterator[tuple[Gateway, Journal]]:
    journal = Journal(disk / "usage", max_backlog_bytes=max_backlog_bytes)
    try:
        async with gateway(journal=journal, **config) as g:
            yield g, journal
    finally:
        await asyncio.to_thread(journal.close)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def sample(g: Gateway, name: str) -> float:
    page = (await g.client.get("/metrics")).text
    return next(float(line.split()[1]) for line in page.splitlines() if line.startswith(f"{name} "))


def lines(disk: Path) -> list[tuple[str, str]]:
    """Event and id of every line of every file; every line must be whole."""
    files = sorted((disk / "usage").glob("*.jsonl"))
    texts = [line for path in files for line in path.read_text().splitlines()]
    return [(entry["event"], entry["id"]) for entry in map(json.loads, texts)]


async def test_no_record_is_lost_on_a_full_disk_and_all_are_written_when_there_is_space(disk: Path) -> None:
    async with metered(disk) as (g, journal):
        ids = [(await g.chat()).json()["id"]]
        fill(disk)
        for _ in range(60):  # the page at the end of the file takes some of them, and part of a line
            answer = await g.chat()
            assert answer.status_code == 200
            ids.append(answer.json()["id"])
        ready = await g.client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        assert NO_SPACE in ready.json()["reasons"][0]
        waiting = await sample(g, "serve_app_usage_backlog")
        assert 40 < waiting <= 61
        assert await sample(g, "serve_app_usage_records_dropped_total") == 0
        torn = (disk / "usage").glob("*.jsonl")
        assert not next(torn).read_bytes().endswith(b"\n"), (
            "the last line fits by chance: the test shows less"
        )
        free(disk)
        await until(lambda: not journal.waiting and journal.problem is None)
        assert (await g.client.get("/readyz")).json() == {"status": "ready"}
        assert await sample(g, "serve_app_usage_backlog") == 0
        found = [record.id for record in read(disk / "usage")]
        assert found == [answer_id.rpartition("-")[2] for answer_id in ids]
        written = lines(disk)
        assert len(set(written)) == len(written), "a line was written twice"
        assert {i for event, i in written if event == "close"} == set(found)


async def test_what_no_longer_fits_into_memory_is_counted(disk: Path) -> None:
    async with metered(disk, max_backlog_bytes=4_000) as (g, journal):
        await g.chat()
        fill(disk)
        answered = 1
        while not journal.dropped:
            assert (await g.chat()).status_code == 200
            answered += 1
        for _ in range(5):
            assert (await g.chat()).status_code == 200
            answered += 1
        dropped = await sample(g, "serve_app_usage_records_dropped_total")
        assert dropped >= 5
        free(disk)
        await until(lambda: not journal.waiting and journal.problem is None)
        assert len(list(read(disk / "usage"))) + dropped == answered


MESSAGES = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        (CHAT, {"model": "demo", **MESSAGES}, {"code": "service_unavailable"}),
        ("/mindie" + CHAT, {"model": "demo", **MESSAGES}, {}),
        ("/serving-endpoints/demo/invocations", MESSAGES, {"error_code": "TEMPORARILY_UNAVAILABLE"}),
        ("/v3/chat/completions", {"model": "demo", **MESSAGES}, {}),
        ("/v2/models/demo/generate", {"text_input": "Hi", "max_tokens": 5}, {}),
    ],
)
async def test_requests_are_refused_where_usage_is_required(
    disk: Path, path: str, body: dict[str, object], error: dict[str, str]
) -> None:
    async with metered(disk, usage_required=True) as (g, journal):
        fill(disk)
        while journal.problem is None:
            assert (await g.chat()).status_code == 200
        before = journal.waiting
        answer = await g.post(path, body)
        assert answer.status_code == 503, answer.text
        assert "usage cannot be written" in answer.text
        assert answer.headers["retry-after"] == "5"
        told = answer.json()
        inner = told.get("error")
        assert error.items() <= {**(inner if isinstance(inner, dict) else {}), **told}.items()
        assert (await g.client.get("/v2/health/ready")).status_code in (400, 503)
        assert journal.waiting == before
        ready = await g.client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "not ready")
        assert NO_SPACE in ready.json()["reasons"][0]
        free(disk)
        await until(lambda: journal.problem is None)
        assert (await g.client.get("/readyz")).status_code == 200
        assert (await g.complete()).status_code == 200


async def test_a_journal_begins_on_a_disk_that_is_full(disk: Path) -> None:
    fill(disk)
    take_inodes(disk)
    async with metered(disk) as (g, journal):
        assert (await g.chat()).status_code == 200
        assert journal.problem is not None
        assert NO_SPACE in journal.problem
        free(disk)
        await until(lambda: journal.problem is None)
        assert [record.outcome for record in read(disk / "usage")] == ["finished"]
