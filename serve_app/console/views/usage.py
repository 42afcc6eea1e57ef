"""Sums over the usage ledger as totals and rows of a table. Does not depend on routes or templates."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from serve_app.console.views import Json


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """The sum over some requests."""

    group: tuple[str, ...]
    requests: int
    failed: int  # failed or lost
    aborted: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    cost: tuple[tuple[str, float], ...]  # currency, amount
    first_token_s: float | None = None
    total_s: float | None = None

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


def usage_rows(report: Json) -> list[UsageRow]:
    """The rows of a report's JSON, in the same order."""
    by = report.get("by", ())
    return [usage_row(row, by) for row in report.get("rows", ())]


def usage_row(row: Json, by: Sequence[str] = ()) -> UsageRow:
    requests = row.get("requests", {})
    counted = {
        "group": [str(row.get(name, "")) for name in by],
        "requests": sum(requests.values()),
        "failed": requests.get("failed", 0) + requests.get("lost", 0),
        "aborted": requests.get("aborted", 0),
        "cost": sorted(row.get("cost", {}).items()),
    }
    return msgspec.convert({**row, **counted}, UsageRow)
