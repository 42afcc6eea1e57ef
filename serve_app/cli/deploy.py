"""`serve-app deploy`: a deploy file into a server that runs."""

from __future__ import annotations

from pathlib import Path

import click

from serve_app.cli.files import DEPLOY_FILE, read_text


@click.command()
@click.argument("file", type=DEPLOY_FILE)
def deploy(file: Path) -> None:
    """Make a running server serve what FILE says now.

    The server is the one of this user and machine that `serve-app serve` started at the port
    of FILE. What did not change goes on untouched; new traffic shares and limits hold from the
    next request; models come and go, and running answers finish as they began. FILE is checked
    as `serve-app validate` does before anything happens. Exits with 0 when all of it runs.
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
    click.echo(f"deploy: {file} is served")
