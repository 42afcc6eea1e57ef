"""`serve-app endpoints`: the group of commands; without one of them the endpoints are listed."""

from __future__ import annotations

from typing import Final

import click
from click.core import ParameterSource

from serve_app.cli.endpoints.changes import create, delete, promote, update
from serve_app.cli.endpoints.listing import print_endpoints
from serve_app.cli.endpoints.looks import get, logs
from serve_app.cli.output import format_option
from serve_app.cli.rollouts import compare, rollout
from serve_app.cli.server import Server, server_options

_OWN: Final = ("url", "key", "form")


@click.group(invoke_without_command=True)
@server_options
@format_option
@click.pass_context
def endpoints(context: click.Context, server: Server, form: str) -> None:
    """List, make, change and remove endpoints.

    Without a command: one line for each served entity of the endpoints that can answer.
    """
    if context.invoked_subcommand is None:
        print_endpoints(server, form)
        return
    for name in _OWN:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            command = f"serve-app endpoints {context.invoked_subcommand}"
            raise click.UsageError(f"options go behind the command: {command} ...")


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
