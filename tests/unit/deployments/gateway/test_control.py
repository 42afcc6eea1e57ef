"""A gateway's snapshots: from the control plane where there is one, else from the file."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from serve_app.deployments.gateway.control import management as control
from serve_app.deployments.gateway.control.management import RemoteManagement, SnapshotFeed
from serve_app.errors import Unavailable
from serve_app.types import Caller
from serve_app.types.control import (
    DeleteEndpoint,
    Done,
    GatewayReport,
    GetEndpoint,
    KnownKey,
    Snapshot,
    WatchSnapshot,
)
from tests.support.small_disk import fill, free, small_disk

ENDPOINTS = {"mine": b'{"name": "mine", "served_entities": [{"model": "demo-chat"}]}'}
KEY = KnownKey(
    digest=b"x" * 32,
    name="alice",
    user="alice",
    is_service_principal=False,
    groups=("a",),
    scopes=("inference",),
    endpoints=(),
)
CALLER = Caller(key_id="ops", scopes=frozenset(), salt="")


class FakeLink:
    """A control plane of one snapshot, which may be away."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.is_away = False
        self.reports: list[GatewayReport] = []
        self.news = asyncio.Event()

    async def call(self, command: Any, caller: Caller, within_s: float) -> Any:
        if self.is_away:
            raise Unavailable("away")
        if not isinstance(command, WatchSnapshot):
            return Done()
        self.reports.append(command.report)
        if command.after == self.snapshot.version and command.wait_s:
            self.news.clear()
            await self.news.wait()
        if self.is_away:
            raise Unavailable("it died")
        is_new = command.after != self.snapshot.version
        return self.snapshot if is_new else Snapshot(version=command.after)

    def change(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.news.set()


@asynccontextmanager
async def feeding(link: FakeLink, file: Path) -> AsyncIterator[tuple[SnapshotFeed, list[Snapshot]]]:
    taken: list[Snapshot] = []
    report = lambda: GatewayReport(gateway="g", declared={}, in_force=taken[-1].version if taken else 0)  # noqa: E731
    feed = SnapshotFeed(link, file, report)  # type: ignore[arg-type]  # calls are all it needs
    feed.subscribe(taken.append)
    feed.start()
    try:
        yield feed, taken
    finally:
        feed.close()


async def until(holds: Any) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.005)


async def test_the_newest_snapshot_is_taken_and_kept_in_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "snapshot"
    link = FakeLink(Snapshot(version=7, endpoints=ENDPOINTS, keys=(KEY,)))
    async with feeding(link, file) as (feed, taken):
        await feed.first(10.0)
        await until(file.exists)
        assert taken == [link.snapshot]
        assert file.stat().st_mode & 0o777 == 0o600
        link.change(Snapshot(version=8))
        await until(lambda: len(taken) == 2)
        assert feed.current == Snapshot(version=8)
        await until(lambda: link.reports[-1].in_force == 8)


async def test_without_a_control_plane_the_kept_snapshot_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "PAUSE_S", 0.01)
    file = tmp_path / "snapshot"
    link = FakeLink(Snapshot(version=7, endpoints=ENDPOINTS, keys=(KEY,)))
    async with feeding(link, file) as (feed, _):
        await feed.first(10.0)
        await until(file.exists)
    link.is_away = True
    async with feeding(link, file) as (feed, taken):
        await feed.first(0.05)
        assert taken == [link.snapshot]
        link.is_away = False
        link.change(Snapshot(version=3))  # of another database: older by number, and yet the truth
        await until(lambda: taken[-1].version == 3)


async def test_the_age_of_a_snapshot_counts_from_the_last_word_of_the_control_plane(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "PAUSE_S", 0.01)
    monkeypatch.setattr(control, "POLL_S", 0.0)  # "nothing new", again and again
    file = tmp_path / "snapshot"
    link = FakeLink(Snapshot(version=7, keys=(KEY,)))
    answers: list[float] = []
    async with feeding(link, file) as (feed, _):
        feed.on_answer = lambda: answers.append(feed.age_s)
        assert feed.age_s == math.inf
        await feed.first(10.0)
        await until(file.exists)
        assert 0 <= feed.age_s < 60
        os.utime(file, (1.0, 1.0))
        await until(lambda: file.stat().st_mtime > 1.0)  # confirmed, though nothing is new
        link.is_away = True
        await until(lambda: not feed._heard.is_set())
        before, told = feed.age_s, len(answers)
        await until(lambda: feed.age_s > before)
        assert 0 < told == len(answers)  # whoever asks after each answer is asked for none that failed
    os.utime(file, (time.time() - 4_000.0,) * 2)
    async with feeding(link, file) as (feed, _):
        await feed.first(0.05)
        assert 4_000.0 <= feed.age_s < 4_060.0  # a gateway that starts alone knows how old it is
        link.is_away = False
        await until(lambda: feed.age_s < 60.0)


async def test_a_snapshot_that_a_full_disk_took_not_is_kept_later_and_no_older_one_passes_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older one may have a key that was revoked since."""
    monkeypatch.setattr(control, "POLL_S", 0.0)  # "nothing new", again and again
    with small_disk(tmp_path / "disk", 2**20) as disk:
        file = disk / "snapshot"
        link = FakeLink(Snapshot(version=7, keys=(KEY,)))
        async with feeding(link, file) as (feed, taken):
            await until(file.exists)
            fill(disk)
            link.change(Snapshot(version=8))
            await until(lambda: taken[-1].version == 8)
            os.utime(file, (1.0, 1.0))
            told = len(link.reports)
            await until(lambda: len(link.reports) > told + 5)
            assert file.stat().st_mtime == 1.0
            assert feed.age_s < 60.0
            free(disk)
            await until(lambda: file.stat().st_mtime > 1.0)
        link.is_away = True
        async with feeding(link, file) as (feed, taken):
            await feed.first(0.05)
            assert taken == [Snapshot(version=8)]


async def test_a_file_that_is_broken_or_missing_is_no_snapshot(tmp_path: Path) -> None:
    link = FakeLink(Snapshot(version=1))
    link.is_away = True
    for content in (None, b"", b"\x93nonsense"):
        file = tmp_path / "snapshot"
        if content is not None:
            file.write_bytes(content)
        async with feeding(link, file) as (feed, taken):
            await feed.first(0.02)
            assert (feed.current, taken) == (None, [])


async def test_a_part_that_cannot_take_a_snapshot_keeps_nobody_else_from_it(tmp_path: Path) -> None:
    link = FakeLink(Snapshot(version=1))
    async with feeding(link, tmp_path / "snapshot") as (feed, taken):
        feed._takers.insert(0, lambda snapshot: 1 / 0)
        await until(lambda: taken)


async def test_a_changed_report_is_told_at_once(tmp_path: Path) -> None:
    link = FakeLink(Snapshot(version=1))
    async with feeding(link, tmp_path / "snapshot") as (feed, taken):
        await until(lambda: len(link.reports) == 2)  # the second one waits for news
        feed.tell()
        await asyncio.sleep(0.02)
        assert len(link.reports) == 2  # there was nothing to tell
        taken.append(Snapshot(version=5))
        feed.tell()
        await until(lambda: len(link.reports) == 3)
        assert link.reports[-1].in_force == 5


async def test_commands_wait_a_moment_for_a_control_plane_that_restarts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "PAUSE_S", 0.01)
    monkeypatch.setattr(control, "RECONNECT_S", 0.2)
    link = FakeLink(Snapshot(version=1))
    link.is_away = True
    async with feeding(link, tmp_path / "snapshot") as (feed, _):
        management = RemoteManagement(link, feed)  # type: ignore[arg-type]
        with pytest.raises(Unavailable, match="the control plane does not answer"):
            await management.do(GetEndpoint(name="mine"), CALLER)
        link.is_away = False
        assert await management.do(DeleteEndpoint(name="mine"), CALLER) == Done()
