"""`serve-app endpoints`: the command group; without a subcommand, it lists the endpoints."""

from __future__ import annotations

from typing import Any, Final

import click
from click.core import ParameterSource

from serve_app.cli.endpoints.changes import create, delete, promote, update
from serve_app.cli.endpoints.looks import get, logs
from serve_app.cli.output import format_option, print_json, print_note, print_table
from serve_app.cli.rollouts import compare, rollout
from serve_app.cli.server import Server, server_options

COLUMNS: Final = ("endpoint", "task", "kind", "context", "entity", "model", "version", "traffic", "ready")
_OWN: Final = ("url", "key", "form")


@click.group(invoke_without_command=True)
@server_options
@format_option
@click.pass_context
def endpoints(context: click.Context, server: Server, form: str) -> None:
    """List, make, change and remove endpoints.

    Without a command, prints one line for each served entity of the endpoints that can answer.
    """
    if context.invoked_subcommand is None:
        print_endpoints(server, form)
        return
    for name in _OWN:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            command = f"serve-app endpoints {context.invoked_subcommand}"
            raise click.UsageError(f"options go after the command: {command} ...")


@click.command("list")
@server_options
@format_option
def list_endpoints(server: Server, form: str) -> None:
    """List the endpoints of a running server.

    One line for each served entity, with its share of the endpoint's traffic and whether it
    can answer now.
    """
    print_endpoints(server, form)


for _command in (list_endpoints, create, get, update, promote, logs, delete, rollout, compare):
    endpoints.add_command(_command)


def print_endpoints(server: Server, form: str) -> None:
    """Print one line for each served entity of the endpoints that can answer, or their JSON."""
    entries = server.read("/v1/models").get("data", [])
    if form == "json":
        print_json(entries)
        return
    rows = [row for entry in entries for row in _rows(entry)]
    if not rows:
        print_note("no endpoint is ready; `serve-app health` says why")
        return
    shown = [name for name in COLUMNS if any(name in row for row in rows)]
    cells = [[row.get(name, "") for name in shown] for row in rows]
    print_table(shown, cells, right=("context", "traffic"))


def _rows(entry: dict[str, Any]) -> list[dict[str, str]]:
    """One row per entity, with only what the server reported."""
    known = {"endpoint": entry.get("id"), "task": entry.get("task"), "kind": entry.get("kind")}
    known["context"] = entry.get("max_model_len")
    own = {name: str(value) for name, value in known.items() if value is not None}
    return [own | _entity(entity) for entity in entry.get("served_entities") or ()] or [own]


def _entity(entity: dict[str, Any]) -> dict[str, str]:
    cells = {
        column: str(entity[member])
        for column, member in (("entity", "name"), ("model", "model"), ("version", "version"))
        if entity.get(member)
    }
    if "traffic" in entity:
        cells["traffic"] = f"{entity['traffic']} %"
    if "ready" in entity:
        cells["ready"] = "yes" if entity["ready"] else "no"
    return cells
