"""Sums over the usage ledger as totals and rows of a table. Knows no route and no template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from serve_app.console.views import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """The sum over some requests."""

    group: tuple[str, ...]
    requests: int
    failed: int  # failed or lost
    aborted: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    cost: tuple[tuple[str, float], ...]  # currency, amount
    first_token_s: float | None
    total_s: float | None

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


def usage_rows(report: Json) -> list[UsageRow]:
    """The rows of a report's JSON, in its order."""
    by = report.get("by", ())
    return [usage_row(row, by) for row in report.get("rows", ())]


def usage_row(row: Json, by: Sequence[str] = ()) -> UsageRow:
    requests: Mapping[str, int] = row.get("requests", {})
    return UsageRow(
        group=tuple(str(row.get(name, "")) for name in by),
        requests=sum(requests.values()),
        failed=requests.get("failed", 0) + requests.get("lost", 0),
        aborted=requests.get("aborted", 0),
        prompt_tokens=row.get("prompt_tokens", 0),
        cached_tokens=row.get("cached_tokens", 0),
        completion_tokens=row.get("completion_tokens", 0),
        cost=tuple(sorted(row.get("cost", {}).items())),
        first_token_s=row.get("first_token_s"),
        total_s=row.get("total_s"),
    )
