"""`serve-app health`: whether a server is alive, and whether it can answer."""

from __future__ import annotations

import click
import httpx

from serve_app.cli.output import printable
from serve_app.cli.server import Server, server_options


@click.command()
@server_options
@click.pass_context
def health(context: click.Context, server: Server) -> None:
    """Show whether a server is ready, or why not.

    Exits with 0 when it is ready, else with 1. The reasons name models, so a server with API keys shows the
    reasons only to callers with a key.
    """
    live = server.get("/livez")
    click.echo(f"live:  {'yes' if live.is_success else f'no (HTTP {live.status_code})'}")
    ready = server.get("/readyz")
    reasons = _reasons(ready)
    click.echo(f"ready: {_word(ready, reasons)}")
    for reason in reasons:
        click.echo(f"  {printable(reason)}")
    context.exit(0 if live.is_success and ready.is_success else 1)


def _word(response: httpx.Response, reasons: list[str]) -> str:
    if not response.is_success:
        return f"no (HTTP {response.status_code})"
    return "yes, but degraded" if reasons else "yes"


def _reasons(response: httpx.Response) -> list[str]:
    try:
        return [str(reason) for reason in response.json().get("reasons", ())]
    except (ValueError, AttributeError, TypeError):
        return []
