"""Command-line options -> request bodies of the management API. Independent of the server."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from serve_app.cli.output import option_group

SIZES: Final = {
    "units": "provisioned_model_units",
    "min_throughput": "min_provisioned_throughput",
    "throughput": "max_provisioned_throughput",
    "min_concurrency": "min_provisioned_concurrency",
    "concurrency": "max_provisioned_concurrency",
    "size": "workload_size",
}
# Members of an entity that the API returns but does not accept.
_TOLD: Final = frozenset({"state", "creator", "creation_timestamp", "foundation_model"})


# The size of the entities: how many replicas of their own they have.
_COUNT: Final = click.IntRange(min=0)
size_options: Final = option_group(
    click.option("--units", type=_COUNT, metavar="N", help="Model units."),
    click.option("--min-throughput", type=_COUNT, metavar="N", help="Tokens a second, always."),
    click.option("--throughput", type=_COUNT, metavar="N", help="Most tokens a second."),
    click.option("--min-concurrency", type=_COUNT, metavar="N", help="Requests at once, always."),
    click.option("--concurrency", type=_COUNT, metavar="N", help="Most requests at once."),
    click.option("--size", type=click.Choice(["Small", "Medium", "Large"]), help="Requests at once."),
    click.option("--scale-to-zero/--no-scale-to-zero", default=None, help="Whether idle replicas stop."),
)


def sizes_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an entity that `size_options` set."""
    found = {field: options[name] for name, field in SIZES.items() if options.get(name) is not None}
    if options.get("scale_to_zero") is not None:
        found["scale_to_zero_enabled"] = options["scale_to_zero"]
    return found


def entities_of(models: Sequence[str], sizes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Served entities from arguments like `harbor-8b@2`, all of the same size."""
    found = []
    for model in models:
        name, _, version = model.rpartition("@") if "@" in model else (model, "", "")
        found.append({"entity_name": name, **({"entity_version": version} if version else {}), **sizes})
    return found


def resized(entities: Sequence[Mapping[str, Any]], sizes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Entities from an API answer, turned into a request body with another size."""
    dropped = _TOLD | (set(SIZES.values()) if sizes.keys() & set(SIZES.values()) else set())
    return [
        {**{name: value for name, value in entity.items() if name not in dropped}, **sizes}
        for entity in entities
    ]


def traffic_of(shares: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """The `traffic_config` for pairs of an entity and its percentage."""
    routes = [{"served_entity_name": name, "traffic_percentage": share} for name, share in shares]
    return {"routes": routes}


def pair(context: click.Context, parameter: click.Parameter, value: Sequence[str]) -> list[tuple[str, str]]:
    """Arguments like KEY=VALUE."""
    found = []
    for each in value:
        key, equals, rest = each.partition("=")
        if not key or not equals:
            raise click.BadParameter(f"{each!r} must be like {parameter.metavar}")
        found.append((key, rest))
    return found


def share(context: click.Context, parameter: click.Parameter, value: Sequence[str]) -> list[tuple[str, int]]:
    """Arguments like ENTITY=PERCENT."""
    found = []
    for entity, percentage in pair(context, parameter, value):
        if not (percentage.isascii() and percentage.isdigit() and int(percentage) <= 100):
            raise click.BadParameter(f"the share of {entity!r} must be a whole number from 0 to 100")
        found.append((entity, int(percentage)))
    return found


def body_file(context: click.Context, parameter: click.Parameter, value: Path | None) -> dict[str, Any]:
    """The JSON object in a file."""
    if value is None:
        return {}
    try:
        body = json.loads(value.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise click.BadParameter(f"{value}: {error}") from error
    if not isinstance(body, dict):
        raise click.BadParameter(f"{value}: must hold a JSON object, as the management API takes it")
    return body
