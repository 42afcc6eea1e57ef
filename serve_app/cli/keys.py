"""`serve-app keys`: API keys: for the key file, and on a running server."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import click

from serve_app.accounts.keys import KeyFileError, new_key
from serve_app.cli.output import format_option, option_group, print_json, print_note, print_table
from serve_app.cli.server import Server, server_options
from serve_app.types import Scope

PATH: Final = "/api/2.0/keys"
COLUMNS: Final = (
    *("id", "name", "prefix", "user", "scopes", "endpoints"),
    *("budget", "spent", "expires", "last used"),
)
DAY_S: Final = 86_400


@click.group()
def keys() -> None:
    """Make, list, change and revoke API keys."""


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


def _names(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
    """A comma-separated list; an empty text is an empty list."""
    return None if value is None else [name.strip() for name in value.split(",") if name.strip()]


# The options that `create` and `update` share.
_limits: Final = option_group(
    click.option("--scopes", callback=_names, metavar="SCOPE,...", help=f"Of {', '.join(Scope)}."),
    click.option(
        "--endpoints", callback=_names, metavar="NAME,...", help="The only endpoints it may use; '': all."
    ),
    click.option("--groups", callback=_names, metavar="NAME,...", help="For permissions and limits."),
    click.option("--budget", type=click.FloatRange(min=0), help="Cost in a month that it may reach."),
    click.option(
        "--soft-budget", type=click.FloatRange(min=0), help="Cost in a month from which answers warn."
    ),
    click.option("--comment", help="A note."),
)


@keys.command()
@click.argument("name")
@_limits
@click.option("--user", help="Whose key it is.  [default: NAME]")
@click.option("--service-principal", is_flag=True, help="It is a service principal's, and no user's.")
@click.option("--days", type=click.IntRange(1, 3650), help="Until it ends; without it never.")
@click.option("--currency", metavar="CODE", help="Of both budgets.  [default: USD]")
@server_options
def create(server: Server, service_principal: bool, days: int | None, **fields: Any) -> None:
    """Make the key NAME on a running server.

    The key is shown once and stored nowhere; keep it now.
    """
    body = _given(fields)
    if service_principal:
        body["is_service_principal"] = True
    if days is not None:
        body["lifetime_seconds"] = days * DAY_S
    made = server.ask("POST", PATH, body)
    print_note(f"the key {made['key_info']['name']} ({made['key_info']['id']}) is shown this once:")
    click.echo(made["key"])


@keys.command("list")
@click.option("--all", "everything", is_flag=True, help="Also keys that expired or were revoked.")
@format_option
@server_options
def list_keys(server: Server, everything: bool, form: str) -> None:
    """List the keys that were made at run time."""
    answer = server.read(f"{PATH}?all={str(everything).lower()}")
    found = answer.get("keys", [])
    if (notice := answer.get("notice")) is not None:
        print_note(notice)
    if form == "json":
        print_json(found)
    elif found:
        print_table(COLUMNS, [_cells(key) for key in found], right=("budget", "spent"))
    else:
        print_note("no key was made at run time; `serve-app keys create NAME` makes one")


@keys.command()
@click.argument("id")
@_limits
@click.option(
    "--clear",
    multiple=True,
    type=click.Choice(["budget", "soft_budget"]),
    help="Take a bound away; may be repeated.",
)
@server_options
def update(server: Server, id: str, clear: tuple[str, ...], **fields: Any) -> None:
    """Change the key with this ID or name. Fields that are not named keep their values."""
    body = _given(fields)
    if clear:
        body["clear"] = list(clear)
    if not body:
        raise click.UsageError("name what is to change")
    server.ask("PATCH", f"{PATH}/{quote(id, safe='')}", body)
    print_note("changed")


@keys.command()
@click.argument("id")
@click.option(
    "--grace-hours", type=click.FloatRange(0, 720), default=0, help="How long the former secret is taken."
)
@server_options
def rotate(server: Server, id: str, grace_hours: float) -> None:
    """Give the key with this ID or name a new secret, which is shown once."""
    body = {"grace_seconds": round(grace_hours * 3600)}
    made = server.ask("POST", f"{PATH}/{quote(id, safe='')}/rotate", body)
    print_note(f"the new secret of {made['key_info']['name']} is shown this once:")
    click.echo(made["key"])


@keys.command()
@click.argument("id")
@server_options
def revoke(server: Server, id: str) -> None:
    """End the key with this ID or name, for good."""
    server.ask("DELETE", f"{PATH}/{quote(id, safe='')}")
    print_note("revoked")


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _cells(key: dict[str, Any]) -> list[str]:
    budget, spent = key.get("budget"), key.get("spent")
    ended = " (revoked)" if "revocation_time" in key else ""
    return [
        str(key.get("id", "")),
        f"{key.get('name', '')}{ended}",
        f"{key.get('prefix', '')}...",
        str(key.get("user", "")),
        ",".join(key.get("scopes", ())),
        ",".join(key.get("endpoints", ())) or "all",
        "" if budget is None else f"{budget:g} {key.get('currency', '')}",
        "unknown" if spent is None else f"{spent:g}",
        _time(key.get("expiry_time")),
        "unknown" if spent is None else _time(key.get("last_used_time")),
    ]


def _time(ms: int | None) -> str:
    return "never" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
