"""`serve-app endpoints get` and `logs`."""

from __future__ import annotations

from typing import Any

import click

from serve_app.cli.endpoints.api import Endpoint, config_of, path_of, progress_of, read
from serve_app.cli.output import format_option, print_json, print_table, printable
from serve_app.cli.server import Server, ServerError, server_options


@click.command()
@click.argument("name")
@format_option
@server_options
def get(server: Server, name: str, form: str) -> None:
    """Show the endpoint NAME: its state, its entities and their shares."""
    endpoint = read(server, name)
    if form == "json":
        print_json(endpoint)
        return
    for key, value in _facts(endpoint):
        click.echo(printable(f"{key + ':':<13}{value}"))
    for title in ("config", "pending_config"):
        config = endpoint.get(title)
        if config:
            click.echo(f"\n{title}, version {config.get('config_version')}")
            _print_entities(config)
    if endpoint.get("pending_config"):
        click.echo("")
        for line in progress_of(endpoint):
            click.echo(line)


@click.command()
@click.argument("name")
@click.argument("entity", required=False)
@click.option("--build", is_flag=True, help="What happened while the entity came up.")
@server_options
def logs(server: Server, name: str, entity: str | None, build: bool) -> None:
    """Show what the replicas of a served ENTITY of NAME logged.

    Without ENTITY, shows the logs of all served entities, one after the other.
    """
    there = [str(each.get("name")) for each in _all_entities(read(server, name))]
    if entity is not None and entity not in there:
        raise ServerError(f"{name} has no served entity {entity}; there is: {', '.join(there)}")
    for each in [entity] if entity is not None else there:
        if len(there) > 1 and entity is None:
            click.echo(printable(f"==> {each} <=="))
        page = path_of(name, "served-models", each, "build-logs" if build else "logs")
        click.echo(printable(str(server.read(page).get("logs", ""))).rstrip("\n"))


def _facts(endpoint: Endpoint) -> list[tuple[str, Any]]:
    state = endpoint.get("state", {})
    known = {
        "endpoint": endpoint.get("name"),
        "id": endpoint.get("id"),
        "task": endpoint.get("task"),
        "kind": endpoint.get("kind"),
        "state": f"{state.get('ready')}, {state.get('config_update')}",
        "message": state.get("message"),
        "creator": endpoint.get("creator"),
        "declared": "by the deploy file, so it is read-only" if endpoint.get("declared") else None,
        "description": endpoint.get("description"),
        "tags": ", ".join(f"{tag['key']}={tag['value']}" for tag in endpoint.get("tags", ())),
    }
    return [(key, value) for key, value in known.items() if value]


def _print_entities(config: Endpoint) -> None:
    routes = config.get("traffic_config", {}).get("routes", ())
    shares = {each["served_entity_name"]: each["traffic_percentage"] for each in routes}
    rows = [
        [
            str(entity.get("name", "")),
            str(entity.get("entity_name", "")),
            str(entity.get("entity_version", "")),
            f"{shares.get(entity.get('name'), 0)} %",
            str(entity.get("state", {}).get("deployment", "")).removeprefix("DEPLOYMENT_").lower(),
        ]
        for entity in config.get("served_entities", ())
    ]
    print_table(("entity", "model", "version", "traffic", "state"), rows, right=("traffic",))


def _all_entities(endpoint: Endpoint) -> list[Endpoint]:
    """The entities that are serving or starting, each name once."""
    listed = [
        entity
        for config in (config_of(endpoint), endpoint.get("pending_config") or {})
        for entity in config.get("served_entities", ())
    ]
    return list({entity.get("name"): entity for entity in listed}.values())
