"""`serve-app endpoints create`, `update`, `promote` and `delete`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console

from serve_app.cli.endpoints import bodies
from serve_app.cli.endpoints.api import (
    ROOT,
    Endpoint,
    config_of,
    path_of,
    read,
    running_rollout,
    until_settled,
)
from serve_app.cli.output import option_group, print_note
from serve_app.cli.server import Server, ServerError, server_options

_TASKS: Final = {
    "chat": "llm/v1/chat",
    "completions": "llm/v1/completions",
    "embeddings": "llm/v1/embeddings",
}


# The options of every command that waits for the server.
_wait_options: Final = option_group(
    click.option(
        "--timeout",
        "timeout_s",
        type=click.FloatRange(min=1),
        default=1200.0,
        show_default=True,
        metavar="SECONDS",
        help="Longest wait.",
    ),
    click.option("--wait/--no-wait", default=True, help="Wait until it is in force."),
)
# The options of create and update alike.
_change_options: Final = option_group(
    server_options,
    bodies.size_options,
    _wait_options,
    click.option(
        "--file",
        "body",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        callback=bodies.body_file,
        help="JSON file with more fields, as the management API takes them.",
    ),
    click.option(
        "--traffic",
        multiple=True,
        metavar="ENTITY=PERCENT",
        callback=bodies.share,
        help="Share of one served entity; once for each. Entities are called MODEL-VERSION.",
    ),
)


@click.command()
@click.argument("name")
@click.argument("models", nargs=-1, metavar="[MODEL[@VERSION]]...")
@click.option("--task", type=click.Choice(list(_TASKS)), help="What it does.  [default: the model's own]")
@click.option("--description", help="For people.")
@click.option(
    "--tag", "tags", multiple=True, metavar="KEY=VALUE", callback=bodies.pair, help="As often as you like."
)
@_change_options
def create(
    server: Server,
    name: str,
    models: Sequence[str],
    task: str | None,
    description: str | None,
    tags: Sequence[tuple[str, str]],
    traffic: Sequence[tuple[str, int]],
    body: dict[str, Any],
    wait: bool,
    timeout_s: float,
    **sizes: Any,
) -> None:
    """Make an endpoint NAME of one or more models.

    With units, a throughput, a concurrency or a size, the endpoint gets replicas of its own. Without any of
    these, it uses replicas that the server already has.
    """
    config = {**body.get("config", {}), **_config(models, bodies.sizes_of(sizes), traffic)}
    whole = {**body, "name": name, "config": config}
    if task is not None:
        whole["task"] = _TASKS[task]
    if description is not None:
        whole["description"] = description
    if tags:
        whole["tags"] = [{"key": key, "value": value} for key, value in tags]
    _settle(server, server.ask("POST", ROOT, whole), wait, timeout_s)


@click.command()
@click.argument("name")
@click.argument("models", nargs=-1, metavar="[MODEL[@VERSION]]...")
@_change_options
def update(
    server: Server,
    name: str,
    models: Sequence[str],
    traffic: Sequence[tuple[str, int]],
    body: dict[str, Any],
    wait: bool,
    timeout_s: float,
    **sizes: Any,
) -> None:
    """Replace what answers as NAME, its size, or its split.

    The former configuration serves until the new one is ready, and no request is lost. Without models, the
    entities stay, but with the new size or split.
    """
    size = bodies.sizes_of(sizes)
    if not (models or traffic or size or body):
        raise click.UsageError("nothing to change: give models, a size, --traffic or --file")
    config = _config(models, size, traffic)
    if size and not models and "served_entities" not in body:
        config["served_entities"] = bodies.resized(_entities(read(server, name)), size)
    _settle(server, server.ask("PUT", path_of(name, "config"), {**body, **config}), wait, timeout_s)


@click.command()
@click.argument("name")
@click.argument("entity")
@_wait_options
@server_options
def promote(server: Server, name: str, entity: str, wait: bool, timeout_s: float) -> None:
    """Send all requests of NAME to one of its served entities.

    The other entities stay, without traffic, until an update leaves them out. A running rollout is ended.
    """
    there = [str(each.get("name")) for each in _entities(read(server, name))]
    if entity not in there:
        raise ServerError(f"{name} has no served entity {entity}; there is: {', '.join(there)}")
    _settle(server, _promoted(server, name, entity, there), wait, timeout_s)


@click.command()
@click.argument("name")
@server_options
def delete(server: Server, name: str) -> None:
    """Remove the endpoint NAME. Its requests are answered to their end."""
    server.ask("DELETE", path_of(name))
    click.echo(f"{name} is removed")


def _promoted(server: Server, name: str, entity: str, there: Sequence[str]) -> Endpoint:
    """The endpoint after a request that sends all traffic to `entity`, one of its existing entities."""
    rollout = running_rollout(server, name)
    if rollout == entity:  # done through the rollout, so that it does not move the traffic back
        server.ask("POST", path_of(name, "rollout", "promote"))
        print_note(f"the rollout to {entity} ends")
        return read(server, name)
    shares = [(each, 100 if each == entity else 0) for each in there]
    changed = server.ask("PUT", path_of(name, "config"), {"traffic_config": bodies.traffic_of(shares)})
    if rollout is not None:  # a rollout ends as soon as somebody else changes the traffic
        print_note(f"the rollout to {rollout} ends")
    return changed


def _config(
    models: Sequence[str], sizes: dict[str, Any], traffic: Sequence[tuple[str, int]]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if models:
        found["served_entities"] = bodies.entities_of(models, sizes)
    if traffic:
        found["traffic_config"] = bodies.traffic_of(traffic)
    return found


def _entities(endpoint: Endpoint) -> list[dict[str, Any]]:
    return list(config_of(endpoint).get("served_entities", ()))


def _settle(server: Server, endpoint: Endpoint, wait: bool, timeout_s: float) -> None:
    """Show the progress of the new configuration, and finally which one serves."""
    if wait:
        console = Console(stderr=True)
        with console.status(f"{endpoint.get('name')} comes up"):  # shows nothing outside a terminal
            endpoint = until_settled(server, endpoint, timeout_s, print_note)
    routes = config_of(endpoint).get("traffic_config", {}).get("routes", ())
    shares = ", ".join(f"{each['served_entity_name']} {each['traffic_percentage']} %" for each in routes)
    state = str(endpoint.get("state", {}).get("ready", "")).lower().replace("_", " ")
    click.echo(f"{endpoint.get('name')} is {state}: {shares}")
