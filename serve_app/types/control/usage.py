"""The usage ledger: how records come into it, and what is asked of it."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.types.account import UsageRecord
from serve_app.types.control.command import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """How many of the records are in the database now: all of them."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipUsage(Command[Shipped]):
    """Write records into the ledger. May be sent again: each request has one row, whatever is repeated.

    `ended` are requests that their own gateway closed. `lost` are those of gateways that died, with what is
    known of them; a row of `ended` is never replaced by one of `lost`.
    """

    ended: tuple[UsageRecord, ...] = ()
    lost: tuple[UsageRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRow:
    """The sum over all requests that agree in the fields of `group`."""

    group: tuple[str, ...]  # their values, in the order of `by`
    requests: dict[str, int]  # by outcome
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    migrations: int
    cost: dict[str, float]  # by currency
    first_token_s: float | None = None  # mean, where it is known
    total_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageReport:
    by: tuple[str, ...]
    rows: tuple[UsageRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportUsage(Command[UsageReport]):
    """Sum up the ledger: requests that began at `since` or later and before `until`, in Unix seconds."""

    by: tuple[str, ...] = ("endpoint", "entity")  # also key, user, group, kind, route, outcome, day
    since: float | None = None
    until: float | None = None
    endpoint: str | None = None  # only of this endpoint
    key: str | None = None  # only of this key
