"""Commands for the usage ledger: to write records into it, and to report from it."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.types.account import UsageRecord
from serve_app.types.control.command import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """All records of the command are in the database."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledPart:
    """What a replica generated for one prompt of a request whose gateway is gone."""

    record: UsageRecord  # the request's, with the tokens of this prompt
    part: str  # the prompt, as the replica knows it; see `accounts.journal.Journal.settled`


@dataclass(frozen=True, slots=True, kw_only=True)
class ShipUsage(Command[Shipped]):
    """Write records into the ledger. May be repeated: each request has only one row in the ledger.

    The order of commands does not matter either. `ended` are requests that their own gateway closed; these
    are final. `lost` are requests of dead gateways, read from the gateways' journals, and `settled` are the
    reports of replicas about such requests. Such a request's row gets the larger of the two counts.
    """

    ended: tuple[UsageRecord, ...] = ()
    lost: tuple[UsageRecord, ...] = ()
    settled: tuple[SettledPart, ...] = ()


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
    count: int  # of all rows, also those outside of `limit` and `offset`
    total: UsageRow  # over all requests, each counted once; its group is empty


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportUsage(Command[UsageReport]):
    """Sum up the ledger: requests that began at `since` or later and before `until`, in Unix seconds.

    A caller without the scope `manage` sees only its own key. If sums are by group, a request of a user in
    several groups counts in each group.
    """

    by: tuple[str, ...] = ("endpoint", "entity")  # also key, user, group, kind, route, outcome, day, month
    since: float | None = None
    until: float | None = None
    endpoint: str | None = None  # only of this endpoint
    key: str | None = None  # only of this key
    shadow: bool = False  # of shadow copies instead of requests
    limit: int | None = None  # rows at most; None: all
    offset: int = 0  # rows that are left out before the first
