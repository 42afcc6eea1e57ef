"""The table of commands."""

from __future__ import annotations

import click

from serve_app.cli.batch.command import batch
from serve_app.cli.chat import chat
from serve_app.cli.check import check
from serve_app.cli.deploy import deploy
from serve_app.cli.endpoints.group import endpoints
from serve_app.cli.health import health
from serve_app.cli.keys import keys
from serve_app.cli.live import live
from serve_app.cli.measure_accuracy import measure_accuracy
from serve_app.cli.measure_throughput import measure_throughput
from serve_app.cli.serve import serve
from serve_app.cli.usage import usage
from serve_app.cli.validate import validate


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="serve-app")
def cli() -> None:
    """Serve models on your own machines, and look after the server."""


for _command in (
    serve,
    deploy,
    validate,
    check,
    health,
    endpoints,
    chat,
    batch,
    keys,
    usage,
    live,
    measure_accuracy,
    measure_throughput,
):
    cli.add_command(_command)


def main() -> None:
    """The console script."""
    cli(prog_name="serve-app")
