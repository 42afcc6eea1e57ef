"""`serve-app serve`: the launcher behind `make serve`."""

from __future__ import annotations

from pathlib import Path

import click

from serve_app.cli.files import DEPLOY_FILE


@click.command()
@click.argument("file", type=DEPLOY_FILE)
@click.option("--no-haproxy", is_flag=True, help="Use Ray Serve's own Python proxy, several times slower.")
@click.pass_context
def serve(context: click.Context, file: Path, no_haproxy: bool) -> None:
    """Serve a deploy file, until Ctrl-C.

    Starts a private one-node Ray cluster for FILE and says what happens while it loads.
    deploy/local.yaml serves the bundled demo model and is a good start for a file of your own.
    """
    from serve_app.deployments.serve import main

    context.exit(main([str(file), *(["--no-haproxy"] if no_haproxy else [])]))
