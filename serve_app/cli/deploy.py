"""`serve-app deploy`: applies a deploy file to a running server."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from serve_app.cli.options import DEPLOY_FILE, read_text
from serve_app.cli.output import INTERRUPTED

GOES_ON: Final = (
    "the server goes on with {file}, without this command. Its terminal says how that ends; "
    "to undo it, deploy the former file then"
)


@click.command()
@click.argument("file", type=DEPLOY_FILE)
def deploy(file: Path) -> None:
    """Make a running server serve what FILE says now.

    The server is the one that this user started on this machine, by `serve-app serve`, at the port in FILE.
    Unchanged parts keep running untouched; new traffic shares and limits apply from the next request on;
    models come and go, and running answers finish as they began. Before anything happens, FILE is checked as
    by `serve-app validate`. Exits with 0 when all of it runs. Ctrl-C ends the command, and the server goes
    on.
    """
    from serve_app.deployments.deploy_file.file import DeployFileError, parse  # Ray comes with it
    from serve_app.deployments.launcher import control, ports
    from serve_app.deployments.launcher.errors import CannotServe

    text = read_text(file)
    try:
        checked = parse(text)
    except DeployFileError as error:
        raise click.ClickException(f"{file} cannot be deployed:\n{error}") from error
    for warning in checked.warnings:
        click.echo(warning.of(file), err=True)
    _, port = ports.address(checked.raw)
    try:
        control.deploy(str(file), text, port, lambda words: click.echo(f"deploy: {words}"))
    except CannotServe as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        click.echo(f"\ndeploy: {GOES_ON.format(file=file)}", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    click.echo(f"deploy: {file} is served")
