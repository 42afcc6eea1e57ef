"""`serve-app live`: current activity, as a table that refreshes itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from serve_app.cli.output import format_option, number, print_json, print_table, printable, three_digits
from serve_app.cli.server import Server, ServerError, server_options

PATH: Final = "/api/2.0/live"
EVERY_S: Final = 2.0  # how often the server has a new point
COLUMNS: Final = (
    *("endpoint", "entity", "requests/s", "errors/s", "tokens/s", "in flight"),
    *("first token p50", "p95", "inter-token p50", "p95 "),
)
LOADS: Final = ("application", "replicas", "running", "waiting", "kv use")


@click.command()
@server_options
@click.option("--endpoint", help="Of this endpoint alone.")
@click.option(
    "--window", type=float, default=60.0, show_default=True, help="Seconds that rates and latencies are of."
)
@click.option("--once", is_flag=True, help="Print once, and do not renew.")
@format_option
def live(server: Server, endpoint: str | None, window: float, once: bool, form: str) -> None:
    """Show current rates, latencies and load.

    Renewed every two seconds in a terminal, until Ctrl-C. The key needs the scope metrics or manage.
    """
    read = partial(server.read, PATH, endpoint=endpoint, window=window)
    body = read()
    if form == "json":
        print_json(body)
    elif once or not Console().is_terminal:
        print_table(COLUMNS, list(_rows(body)), right=COLUMNS[2:])
        click.echo()
        print_table(LOADS, list(_loads(body)), right=LOADS[1:])
    else:
        _renew(read, body)


def _renew(read: Callable[[], Mapping[str, Any]], body: Mapping[str, Any]) -> None:
    """Show `body`, and then newer ones, until the user ends the display."""
    with Live(_shown(body), auto_refresh=False) as shown:
        try:
            while True:
                time.sleep(EVERY_S)
                try:
                    shown.update(_shown(read()), refresh=True)
                except ServerError as error:
                    if not error.may_pass:
                        raise
        except KeyboardInterrupt:
            return


def _shown(body: Mapping[str, Any]) -> Table:
    outer = Table.grid()
    outer.add_row(_table(COLUMNS, _rows(body), num_names=2))
    outer.add_row(Text())
    outer.add_row(_table(LOADS, _loads(body), num_names=1))
    return outer


def _table(header: tuple[str, ...], rows: Iterator[list[str]], num_names: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for place, title in enumerate(header):
        table.add_column(Text(title.upper()), justify="left" if place < num_names else "right")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    return table


def _rows(body: Mapping[str, Any]) -> Iterator[list[str]]:
    """A row for each served entity, and a row for the total of each endpoint with several entities."""
    for endpoint in body["endpoints"]:
        entities = endpoint["entities"]
        if len(entities) > 1:
            yield [endpoint["endpoint"], "(all)", *_cells(endpoint["window"])]
        for entity in entities:
            yield [endpoint["endpoint"], entity["entity"], *_cells(entity["window"])]


def _loads(body: Mapping[str, Any]) -> Iterator[list[str]]:
    for app in body["applications"]:
        use = app["kv_use"]
        counts = (number(app[name]) for name in ("replicas", "running", "waiting"))
        yield [app["application"], *counts, "-" if use is None else f"{use:.0%}"]


def _cells(figures: Mapping[str, Any]) -> list[str]:
    rates = [three_digits(figures[name]) for name in ("requests_per_s", "errors_per_s", "tokens_per_s")]
    first, inter = figures["first_token_s"], figures["inter_token_s"]
    times = (first["p50"], first["p95"], inter["p50"], inter["p95"])
    return [*rates, number(figures["in_flight"]), *(_seconds(each) for each in times)]


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{three_digits(value * 1000)} ms" if value < 1 else f"{three_digits(value)} s"
