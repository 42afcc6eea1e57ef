"""`serve-app endpoints rollout` and `compare`: traffic in guarded steps, and entities side by side."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from serve_app.cli.endpoints.api import path_of
from serve_app.cli.options import METAVAR, unix_seconds
from serve_app.cli.output import format_option, print_json, print_note, print_table, printable, three_digits
from serve_app.cli.server import Server, ServerError, server_options

LOOK_S: Final = 2.0  # between two polls while waiting for a rollout
RUNNING: Final = "RUNNING"
ALLOWED: Final = "95th percentile that is allowed."
COLUMNS: Final = ("entity", "requests", "error rate", "first token", "total", "output tokens")


@click.command()
@server_options
@click.argument("endpoint")
@click.argument("entity", required=False)
@click.option("--steps", metavar="5,25,...", help="Rising percentages, 100 the last.  [default: 5,25,50,100]")
@click.option("--interval", metavar="SECONDS", type=float, help="That a step lasts at least.  [default: 60]")
@click.option("--max-error-rate", type=float, help="Share of its requests that may fail.  [default: 0.05]")
@click.option("--max-first-token", "max_first_token_s", metavar="SECONDS", type=float, help=ALLOWED)
@click.option("--max-total", "max_total_s", metavar="SECONDS", type=float, help=ALLOWED)
@click.option("--min-requests", type=int, help="That a step sees before the next one.  [default: 20]")
@click.option("--wait", is_flag=True, help="Tell each step, until the rollout ends.")
@click.option("--stop", is_flag=True, help="End the rollout: the former traffic comes back.")
@click.option("--promote", is_flag=True, help="End the rollout: all traffic goes to its entity.")
def rollout(
    server: Server,
    endpoint: str,
    entity: str | None,
    steps: str | None,
    interval: float | None,
    wait: bool,
    stop: bool,
    promote: bool,
    **guards: float | None,
) -> None:
    """Move the traffic of ENDPOINT to ENTITY in guarded steps, or show its progress.

    Without ENTITY the newest rollout is shown. With --wait the command fails unless the entity
    got all traffic.
    """
    if sum((entity is not None, stop, promote)) > 1:
        raise click.UsageError("only one of ENTITY, --stop and --promote")
    path = path_of(endpoint, "rollout")
    body = {
        "entity": entity,
        "steps": None if steps is None else _steps(steps),
        "interval_s": interval,
        "guards": {name: value for name, value in guards.items() if value is not None} or None,
    }
    given = {name: value for name, value in body.items() if value is not None}
    if entity is not None:
        shown = server.ask("POST", path, given)
    elif given:
        raise click.UsageError("steps, interval and guards need an ENTITY to move the traffic to")
    elif stop:
        shown = server.ask("DELETE", path)
    else:
        shown = server.ask("POST", f"{path}/promote") if promote else server.ask("GET", path)
    _tell(shown)
    if wait:
        _follow(server, path, shown)


@click.command()
@server_options
@click.argument("endpoint")
@click.option("--metric", default="error_rate", show_default=True, help="That is tested; also of feedback.")
@click.option("--since", metavar=METAVAR, callback=unix_seconds, help="None: the newest configuration.")
@click.option("--confidence", type=float, default=0.95, show_default=True)
@format_option
def compare(
    server: Server, endpoint: str, metric: str, since: float | None, confidence: float, form: str
) -> None:
    """Compare the served entities of ENDPOINT.

    Intervals and p-values stay valid however often you look at them.
    """
    report = server.read(
        path_of(endpoint, "comparison"),
        metric=metric,
        confidence=confidence,
        since_timestamp=None if since is None else round(since * 1000),
    )
    if form == "json":
        print_json(report)
        return
    rated = sorted({name for entity in report["entities"] for name in entity["feedback"]})
    rows = [_row(entity, rated) for entity in report["entities"]]
    print_table([*COLUMNS, *rated], rows, right=("requests",))
    for test in report["tests"]:
        click.echo(printable(_verdict(test)))


def _steps(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(
            "must be whole numbers with commas between, such as 5,25,100", param_hint="--steps"
        ) from None


def _tell(shown: dict[str, Any]) -> None:
    where = f"{shown['endpoint']} -> {shown['entity']}: {shown['state']}, {shown['percentage']} %"
    click.echo(printable(f"{where}: {shown['message']}"))


def _follow(server: Server, path: str, shown: dict[str, Any]) -> None:
    """Print changes until the rollout ends."""
    while shown["state"] == RUNNING:
        time.sleep(LOOK_S)
        before = shown
        try:
            shown = server.ask("GET", path)
        except ServerError as error:
            if not error.may_pass:
                raise
            print_note(str(error))
            continue
        if (shown["state"], shown["step"]) != (before["state"], before["step"]):
            _tell(shown)
    if shown["state"] != "DONE":
        raise click.ClickException(f"the rollout ended as {shown['state']}")


def _row(entity: dict[str, Any], rated: list[str]) -> list[str]:
    name = f"{entity['entity']} (shadow)" if entity["shadow"] else entity["entity"]
    cells = [name, str(entity["requests"]), _estimate(entity["error_rate"], 100, " %")]
    cells += [_estimate(entity["first_token_s"], 1, " s"), _estimate(entity["total_s"], 1, " s")]
    cells.append(_estimate(entity["completion_tokens"], 1, ""))
    return cells + [_estimate(entity["feedback"].get(metric), 1, "") for metric in rated]


def _estimate(estimate: dict[str, Any] | None, scale: float, unit: str) -> str:
    """An estimate as text: `1.5 % (0.8 to 2.9)`."""
    if estimate is None or estimate["mean"] is None:
        return "-"
    shown = f"{three_digits(estimate['mean'] * scale)}{unit}"
    if estimate["low"] is None:
        return shown
    return f"{shown} ({three_digits(estimate['low'] * scale)} to {three_digits(estimate['high'] * scale)})"


def _verdict(test: dict[str, Any]) -> str:
    name = f"{test['entity']} (shadow)" if test["shadow"] else test["entity"]
    difference = _estimate(test["difference"], 1, "")
    word = "differs from" if test["is_significant"] else "may be equal to"
    return f"{name} {word} {test['against']} in {test['metric']}: {difference}, p = {test['p_value']:.2g}"
