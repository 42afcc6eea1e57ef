"""The forms of an endpoint's configuration: rows of entities and shares, and the bodies made from them.

Each field is named by its path in the API's body, such as `served_entities.0.entity_name`, so an API error
names the field that it is about. Does not depend on routes or templates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from serve_app.console.forms import Form, number
from serve_app.console.views import Json
from serve_app.endpoints.rules import entity_name

TEXTS: Final = ("name", "entity_name", "entity_version", "workload_size")
NUMBERS: Final = (
    "provisioned_model_units",
    *("min_provisioned_throughput", "max_provisioned_throughput"),
    *("min_provisioned_concurrency", "max_provisioned_concurrency"),
)
FLAGS: Final = ("scale_to_zero_enabled", "burst_scaling_enabled")
SHARE: Final = "traffic_percentage"
WAS: Final = "was"  # the name of the entity that a row was made from
CONFIG_VERSION: Final = "config_version"  # of the configuration that a form was made from
WHOLE: Final = 100

ENTITY_OF_SHARE: Final = "entity"  # field in each line of a form that splits the traffic
SHARE_OF_ENTITY: Final = "share"
MAX_ROWS: Final = 100  # in one form, including removed rows
_UNASKED: Final = ("creator", "creation_timestamp", "state")  # of an entity as the API shows it


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityRow:
    """The fields of one entity in a form, as texts."""

    index: int
    was: str = ""
    share: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    flags: frozenset[str] = frozenset()

    def field(self, name: str) -> str:
        """The name of a field of this row."""
        return f"served_entities.{self.index}.{name}"

    @property
    def is_sized_finely(self) -> bool:
        """Whether the row's size is more than a plain number of units."""
        fine = (*NUMBERS[1:], "workload_size")
        return any(self.values.get(name) for name in fine) or "burst_scaling_enabled" in self.flags


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRow:
    """One line of a form that splits the traffic."""

    entity: str
    share: str


def rows_of(config: Json) -> list[EntityRow]:
    """The rows of a form that edits `config`, a configuration as the API shows it."""
    shares = shares_of(config)
    return [
        EntityRow(
            index=index,
            was=entity.get("name", ""),
            share=str(shares.get(entity.get("name", ""), 0)),
            values={name: str(entity[name]) for name in (*TEXTS, *NUMBERS) if name in entity},
            flags=frozenset(name for name in FLAGS if entity.get(name)),
        )
        for index, entity in enumerate(config.get("served_entities", ()))
    ]


def rows_in(form: Form) -> list[EntityRow]:
    """The rows that a form had when it was sent, so that a refused form keeps what was typed.

    They are renumbered as in the body, because rows in between may have been removed.
    """
    found = []
    for position, index in enumerate(_indices(form)):
        sent = EntityRow(index=index)
        found.append(
            EntityRow(
                index=position,
                was=form.text(sent.field(WAS)),
                share=form.text(sent.field(SHARE)),
                values={name: form.text(sent.field(name)) for name in (*TEXTS, *NUMBERS)},
                flags=frozenset(name for name in FLAGS if form.text(sent.field(name))),
            )
        )
    return found


def blank_row(index: int = 0, share: int = WHOLE) -> EntityRow:
    return EntityRow(index=index, share=str(share), values={"provisioned_model_units": "1"})


def config_body(form: Form, former: Json | None = None) -> dict[str, Any]:
    """The configuration described by a form.

    Members that have no field keep the value that the row's entity had in `former`.
    """
    known = {each.get("name"): each for each in (former or {}).get("served_entities", ())}
    rows = rows_in(form)
    entities = [_entity(row, known.get(row.was)) for row in rows]
    if len(rows) < 2:
        return {"served_entities": entities}
    shares = ((_name(entity), number(row.share)) for row, entity in zip(rows, entities, strict=True))
    return {"served_entities": entities, **_traffic(shares)}


def share_rows(config: Json) -> list[ShareRow]:
    """One row for each entity of a configuration, with its share."""
    shares = shares_of(config)
    names = [entity.get("name", "") for entity in config.get("served_entities", ())]
    return [ShareRow(entity=name, share=str(shares.get(name, 0))) for name in names]


def share_rows_in(form: Form) -> list[ShareRow]:
    """The rows that a form had when it was sent."""
    lines = zip(form.all(ENTITY_OF_SHARE), form.all(SHARE_OF_ENTITY), strict=False)
    return [ShareRow(entity=entity, share=share) for entity, share in lines]


def traffic_body(form: Form) -> dict[str, Any]:
    """The traffic split described by a form."""
    return _traffic((row.entity, number(row.share)) for row in share_rows_in(form))


def promotion_body(config: Json, entity: str) -> dict[str, Any]:
    """The split that sends all requests to one entity."""
    return _traffic((row.entity, WHOLE if row.entity == entity else 0) for row in share_rows(config))


def _traffic(shares: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The split with these shares by entity, in the format of a request body."""
    routes = [{"served_entity_name": name, SHARE: share} for name, share in shares]
    return {"traffic_config": {"routes": routes}}


def _entity(row: EntityRow, former: Json | None) -> dict[str, Any]:
    """The entity for a body: the form's fields, and the former values of members that have no field."""
    entity = {name: value for name, value in (former or {}).items() if name not in _UNASKED}
    for name in (*TEXTS, *NUMBERS, *FLAGS):
        entity.pop(name, None)
    entity |= {name: text for name in TEXTS if (text := row.values.get(name))}
    entity |= {name: value for name in NUMBERS if (value := number(row.values.get(name, ""))) is not None}
    return entity | dict.fromkeys(row.flags, True)


def _name(entity: Json) -> str:
    """An entity's name, or the name that the API gives to a nameless entity."""
    return entity.get("name") or entity_name(entity.get("entity_name", ""), entity.get("entity_version", ""))


def shares_of(config: Json) -> dict[str, int]:
    """The percentage of each entity that has a share in a configuration."""
    routes = config.get("traffic_config", {}).get("routes", ())
    return {route["served_entity_name"]: route[SHARE] for route in routes}


def _indices(form: Form) -> list[int]:
    rows = (EntityRow(index=index) for index in range(MAX_ROWS))
    return [row.index for row in rows if row.field("entity_name") in form]
