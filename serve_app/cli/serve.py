"""`serve-app serve`: the launcher behind `make serve`."""

from __future__ import annotations

from pathlib import Path

import click

from serve_app.cli.files import DEPLOY_FILE


@click.command()
@click.argument("file", type=DEPLOY_FILE)
@click.option("--no-haproxy", is_flag=True, help="Use Ray Serve's own Python proxy, several times slower.")
@click.option(
    "--grace",
    type=click.FloatRange(0, 86_400),
    metavar="SECONDS",
    help="How long running answers may take to finish after a stop.  [default: the Gateway's "
    "graceful_shutdown_timeout_s in FILE, or 600]",
)
@click.pass_context
def serve(context: click.Context, file: Path, no_haproxy: bool, grace: float | None) -> None:
    """Serve a deploy file, until Ctrl-C.

    Starts a private one-node Ray cluster for FILE and says what happens while it loads.
    deploy/local.yaml serves the bundled demo model and is a good start for a file of your own.
    Ctrl-C or SIGTERM lets running answers finish and refuses new ones; a second one stops at once.
    """
    from serve_app.deployments.serve import main

    flags = ["--no-haproxy"] if no_haproxy else []
    flags += [] if grace is None else ["--grace", str(grace)]
    context.exit(main([str(file), *flags]))
