"""`serve-app usage`: how much each caller used, from the usage journal's files or a server's ledger."""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from serve_app.accounts.journal_reader import read
from serve_app.cli.options import METAVAR, unix_seconds
from serve_app.cli.output import number, print_json, print_note, print_table
from serve_app.cli.server import Server, checked_key, url_option
from serve_app.config import default_usage_dir
from serve_app.types import UsageRecord

FIELDS: Final = ("endpoint", "entity", "key", "user", "group", "kind", "route", "outcome", "day", "month")


@dataclass(slots=True)
class Total:
    """The sum over all records that agree in the fields of `group`."""

    group: tuple[str, ...]  # the values of its fields, in the order of `by`
    requests: dict[str, int] = field(default_factory=dict)  # by outcome
    prompt_tokens: int = 0  # cached tokens included
    cached_tokens: int = 0
    completion_tokens: int = 0
    migrations: int = 0  # moves of answers to another replica
    cost: dict[str, float] = field(default_factory=dict)  # by currency; requests without a price are left out

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

    A request of a user in several groups counts in each of them, if `by` has "group". Days and months are
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
    """The values of a field of `record`: one value, or one for each group."""
    if name == "group":
        return record.groups or ("",)
    if name == "key":
        return (record.key_id,)
    if name == "day":
        return (time.strftime("%Y-%m-%d", time.gmtime(record.started)),)
    if name == "month":
        return (time.strftime("%Y-%m", time.gmtime(record.started)),)
    return (str(getattr(record, name)),)


OUTCOMES: Final = ("finished", "failed", "aborted", "lost")
_TOKENS: Final = ("prompt_tokens", "cached_tokens", "completion_tokens")
_SUMS: Final = ("requests", *_TOKENS, "migrations", "cost")
PATH: Final = "/api/2.0/usage"


def _fields(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = [name.strip() for name in value.split(",")]
    for name in names:
        if name not in FIELDS:
            raise click.BadParameter(f"{name!r} is none of {', '.join(FIELDS)}")
    return tuple(dict.fromkeys(names))


@click.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="The gateway's usage_dir.  [default: $SERVE_APP_USAGE_DIR, else $XDG_STATE_HOME/serve-app/usage]",
)
@click.option(
    "--url",
    callback=url_option,
    help="Ask the ledger of this server, and read no files: http://127.0.0.1:8000",
)
@click.option(
    "--key", envvar="SERVE_APP_KEY", show_envvar=True, callback=checked_key, help="API key for the server."
)
@click.option("--since", metavar=METAVAR, callback=unix_seconds, help="Requests that began then or later.")
@click.option("--until", metavar=METAVAR, callback=unix_seconds, help="Requests that began earlier.")
@click.option(
    "--by",
    default="endpoint,entity",
    show_default=True,
    metavar="FIELD,...",
    callback=_fields,
    help=f"One total for each combination of: {', '.join(FIELDS)}.",
)
@click.option(
    "--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True
)
@click.option("--records", is_flag=True, help="Print the records themselves, as JSON lines.")
def usage(
    folder: Path | None,
    url: str | None,
    key: str | None,
    since: float | None,
    until: float | None,
    by: tuple[str, ...],
    form: str,
    records: bool,
) -> None:
    """Sum up usage, of journals or of a server.

    Every admitted request counts once, however it ended: a request of a gateway that died
    is "lost". Without --url only files are read, so the command works with or without a running server. The
    server's ledger covers all nodes; a key without the scope manage sees only its own usage. Days and months
    are in UTC.

    \b
    serve-app usage --since 7d --by key,endpoint
    serve-app usage --url http://127.0.0.1:8000 --by key,month
    serve-app usage --since 2026-03-01 --until 2026-04-01 --format csv > march.csv
    """
    if url is not None and (records or folder is not None):
        raise click.UsageError("--dir and --records read journals; --url asks a server instead")
    if records:
        for record in _read(folder or default_usage_dir(), since, until):
            click.echo(msgspec.json.encode(record))
        return
    if url is None:
        totals = summarise(_read(folder or default_usage_dir(), since, until), by)
    else:
        totals = _asked(Server(url, key), since, until, by)
    if form == "json":
        print_json([_plain(total, by) for total in totals])
        return
    header, cells = _rows(totals, by)
    if form == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerows([header, *cells])
    elif totals:
        texts = [[cell if isinstance(cell, str) else number(cell) for cell in row] for row in cells]
        print_table(header, texts, right=header[len(by) :])
    else:
        print_note("no requests in that time")


def _read(folder: Path, since: float | None, until: float | None) -> Iterator[UsageRecord]:
    if not folder.is_dir():
        raise click.ClickException(
            f"there is no usage journal in {folder}; --dir names another folder, the gateway's usage_dir"
        )
    try:
        yield from read(folder, since=since, until=until)
    except OSError as error:
        raise click.ClickException(f"the usage journal cannot be read: {error}") from error


def _asked(server: Server, since: float | None, until: float | None, by: Sequence[str]) -> list[Total]:
    """The totals of the server's ledger. Raises ServerError."""
    rows = server.read(PATH, by=",".join(by), since=since, until=until).get("rows", [])
    return [
        Total(
            tuple(str(row[name]) for name in by),
            **{name: row[name] for name in _SUMS},
        )
        for row in rows
    ]


def _plain(total: Total, by: Sequence[str]) -> dict[str, Any]:
    return dict(zip(by, total.group, strict=True)) | {name: getattr(total, name) for name in _SUMS}


def _rows(totals: Sequence[Total], by: Sequence[str]) -> tuple[list[str], list[list[str | int | float]]]:
    """The header and the cells of a table, with a column for each outcome and each currency that occurs.

    If there were migrations, they have a column too.
    """
    outcomes = [name for name in OUTCOMES if any(name in total.requests for total in totals)]
    currencies = sorted({currency for total in totals for currency in total.cost})
    counts = [*_TOKENS, *(["migrations"] if any(total.migrations for total in totals) else [])]
    header = [*by, "requests", *outcomes, *counts, *(f"cost_{name}" for name in currencies)]
    cells = [
        [
            *total.group,
            sum(total.requests.values()),
            *(total.requests.get(name, 0) for name in outcomes),
            *(getattr(total, name) for name in counts),
            *(total.cost.get(name, "") for name in currencies),
        ]
        for total in totals
    ]
    return header, cells
