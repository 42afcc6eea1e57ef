"""What many requests used together: counts, tokens and costs by endpoint, key, month and more.

Knows usage records; not where they come from or how totals are shown.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final

from serve_app.types import UsageRecord

FIELDS: Final = ("endpoint", "entity", "key", "user", "group", "kind", "route", "outcome", "day", "month")


@dataclass(slots=True)
class Total:
    """The sum over all records that agree in the fields of `group`."""

    group: tuple[str, ...]  # their values, in the order of `by`
    requests: dict[str, int] = field(default_factory=dict)  # by outcome
    prompt_tokens: int = 0  # cached ones included
    cached_tokens: int = 0
    completion_tokens: int = 0
    migrations: int = 0  # moves of answers to another replica
    cost: dict[str, float] = field(default_factory=dict)  # by currency; without requests that have no price

    def add(self, record: UsageRecord) -> None:
        self.requests[record.outcome] = self.requests.get(record.outcome, 0) + 1
        self.prompt_tokens += record.prompt_tokens
        self.cached_tokens += record.cached_tokens
        self.completion_tokens += record.completion_tokens
        self.migrations += record.migrations
        if record.cost is not None and record.currency is not None:
            self.cost[record.currency] = self.cost.get(record.currency, 0.0) + record.cost


def summarise(records: Iterable[UsageRecord], by: Sequence[str] = ("endpoint", "entity")) -> list[Total]:
    """One total for each combination of the fields `by`, in their order; copies for a shadow are left out.

    A request of a user in several groups counts in each of them, where `by` has "group". Days and months are
    those in which requests began, in UTC. Raises ValueError for a field that is not in `FIELDS`.
    """
    unknown = sorted(set(by) - set(FIELDS))
    if unknown:
        raise ValueError(f"by: {unknown[0]!r} is none of {', '.join(FIELDS)}")
    totals: dict[tuple[str, ...], Total] = {}
    for record in records:
        if record.shadow:
            continue
        for group in product(*(_values(record, name) for name in by)):
            totals.setdefault(group, Total(group)).add(record)
    return [totals[group] for group in sorted(totals)]


def _values(record: UsageRecord, name: str) -> Sequence[str]:
    """What `record` has in a field: one value, or one for each group."""
    if name == "group":
        return record.groups or ("",)
    if name == "key":
        return (record.key_id,)
    if name == "day":
        return (time.strftime("%Y-%m-%d", time.gmtime(record.started)),)
    if name == "month":
        return (time.strftime("%Y-%m", time.gmtime(record.started)),)
    return (str(getattr(record, name)),)
