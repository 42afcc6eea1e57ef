"""Budgets and a journal in this process: the real buckets without the way to them, and a list."""

from __future__ import annotations

from collections.abc import Sequence

from serve_app.accounts.token_buckets import Buckets
from serve_app.types import Draw, UsageRecord, Verdict


class LocalQuota:
    """Budgets of one gateway alone, in a time that stands still unless a test moves `now` (seconds)."""

    def __init__(self) -> None:
        self.now = 0.0
        self.buckets = Buckets(lambda: self.now)

    async def claim(self, draws: Sequence[Draw]) -> Verdict:
        return self.buckets.claim(draws)

    def settle(self, draws: Sequence[Draw]) -> None:
        self.buckets.settle(draws)


class ListJournal:
    """Records in memory, in order."""

    problem: str | None = None
    waiting = 0
    dropped = 0

    def __init__(self) -> None:
        self.open: dict[str, UsageRecord] = {}
        self.records: list[UsageRecord] = []
        self.progress: list[UsageRecord] = []

    def opened(self, record: UsageRecord) -> None:
        if record.id in self.open:
            raise AssertionError("a request was opened twice")
        self.open[record.id] = record

    def progressed(self, record: UsageRecord) -> None:
        if record.id not in self.open:
            raise AssertionError("a request goes on that is not open")
        self.progress.append(record)

    def closed(self, record: UsageRecord) -> None:
        del self.open[record.id]  # KeyError: closed twice, or never opened
        self.records.append(record)
