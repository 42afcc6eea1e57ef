"""`serve-app serve` (and `make serve`): a deploy file on a private cluster, in the foreground."""

from __future__ import annotations

import math
import platform
from pathlib import Path
from typing import Final

import click

from serve_app.cli.options import DEPLOY_FILE
from serve_app.deployments.deploy_file.example import example

MAX_GRACE_S: Final = 86_400.0


def _number(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    """Refuse `nan`, which passes click's own check of the range."""
    if value is not None and math.isnan(value):
        raise click.BadParameter(f"nan is not in the range 0<=x<={MAX_GRACE_S:g}.")
    return value


@click.command()
@click.argument("file", type=DEPLOY_FILE, required=False)
@click.option("--no-haproxy", is_flag=True, help="Use Ray Serve's own Python proxy, several times slower.")
@click.option(
    "--grace",
    type=click.FloatRange(0, MAX_GRACE_S),
    metavar="SECONDS",
    callback=_number,
    help="How long running answers may take to finish after a stop.  [default: the Gateway's "
    "graceful_shutdown_timeout_s in FILE, or 600]",
)
@click.pass_context
def serve(context: click.Context, file: Path | None, no_haproxy: bool, grace: float | None) -> None:
    """Serve a deploy file, until Ctrl-C.

    Starts a private one-node Ray cluster for FILE and says what happens while it loads.
    Without FILE it names one that serves the bundled demo models, a good start for your own.
    Ctrl-C or SIGTERM lets running answers finish and refuses new ones; a second one stops at once.

    Exits with 0 when it was asked to stop, and with 1 when it could not serve or go on.
    """
    if file is None:
        raise click.UsageError(f"name a deploy file, such as {example()}, which serves the demo models")
    if platform.system() != "Linux":
        raise click.ClickException(
            f"serving needs Linux, whose kernel ends all that a server started; this is {platform.system()}. "
            "Use the container image; the other commands work here."
        )
    from serve_app.deployments.launcher.launcher import Launcher
    from serve_app.deployments.launcher.server import Options

    context.exit(Launcher(Options(file, use_haproxy=not no_haproxy, grace_s=grace)).run())
