"""`serve-app keys`: API keys for the key file."""

from __future__ import annotations

import click

from serve_app.accounts.keys import KeyFileError, new_key
from serve_app.types import Scope


@click.group()
def keys() -> None:
    """Make API keys."""


@keys.command()
@click.argument("name")
@click.option(
    "--scopes",
    default=Scope.INFERENCE.value,
    show_default=True,
    metavar="SCOPE,...",
    help=f"What the key may do, comma-separated: {', '.join(Scope)}.",
)
def new(name: str, scopes: str) -> None:
    """Make a key for NAME, which shows in logs and in usage.

    The key is shown once and stored nowhere. The server gets the line below it, which holds
    a hash: put it into the file that `keys_file` names, or into SERVE_APP_API_KEYS.
    """
    wanted = scopes.split(",")
    for scope in wanted:
        if scope not in set(Scope):
            raise click.BadParameter(f"{scope!r} is none of {', '.join(Scope)}", param_hint="--scopes")
    try:
        key, line = new_key(name, wanted)
    except KeyFileError as error:
        raise click.BadParameter(
            "must be 1 to 64 characters of A-Z a-z 0-9 . _ -", param_hint="NAME"
        ) from error
    click.echo(f"key (shown once):       {key}\nline for the key file:  {line}")
