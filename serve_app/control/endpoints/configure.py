"""Turns a client's request into a configuration that can run, or reports why it cannot. Pure logic.

A served entity keeps its application if only its size changes. For any other change a new application is
started, and the former one serves until the new one is up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from serve_app.config import ControlConfig
from serve_app.control.endpoints.cluster import Room
from serve_app.control.endpoints.offers import Offers
from serve_app.control.endpoints.room import LeastMemory, check_room
from serve_app.control.endpoints.sizing import size
from serve_app.control.endpoints.state import RUN_TIME, AppSpec, Config, Entity
from serve_app.endpoints.endpoint import Kind
from serve_app.endpoints.rules import MAX_ENTITIES, BrokenRule, app_name, checked_traffic, entity_name
from serve_app.errors import InvalidField
from serve_app.types.control import ConfigWanted, EntityWanted

ENTITIES: Final = "served_entities"
SLUG_CHARS: Final = 60
# field of an endpoint -> of a configuration as clients send it
_FIELDS: Final = {"served_entities": ENTITIES, "traffic": "traffic_config"}


@dataclass(frozen=True, slots=True)
class Configurator:
    """All the facts that decide whether a new configuration can run."""

    offers: Offers
    config: ControlConfig
    room: Room
    next_revision: Callable[[], int]
    least_memory: LeastMemory = lambda config: None

    def configuration(
        self,
        endpoint: str,
        wanted: ConfigWanted,
        former: Config | None,
        *,
        version: int,
        is_provisioned: bool,
        creator: str,
        now: float,
    ) -> Config:
        """The configuration for `wanted`. Raises InvalidField, also if there is no room."""
        if not 1 <= len(wanted.entities) <= MAX_ENTITIES:
            raise InvalidField(ENTITIES, f"must have 1 to {MAX_ENTITIES} entries")
        named = [
            replace(each, name=each.name or entity_name(each.entity_name, each.entity_version))
            for each in wanted.entities
        ]
        try:
            traffic = checked_traffic(wanted.traffic, [each.name for each in named])
        except BrokenRule as broken:
            raise InvalidField(_FIELDS[broken.field], broken.problem) from None
        reusable = list(former.entities) if former is not None else []
        kind, make = (
            (Kind.PROVISIONED, self._provisioned) if is_provisioned else (Kind.PAY_PER_TOKEN, self._shared)
        )
        entities = tuple(
            replace(
                make(endpoint, each, f"{ENTITIES}[{index}]", reusable),
                creator=_creator(each, former) or creator,
                created=_created(each, former) or now,
            )
            for index, each in enumerate(named)
        )
        made = Config(
            version=version, entities=entities, traffic=traffic, stored=wanted.stored, kind=kind.value
        )
        if self.config.check_resources:
            running = {spec.name: spec for spec in (former.specs if former is not None else ())}
            check_room(made.specs, running, self.room, self.least_memory, ENTITIES)
        return made

    def _shared(self, endpoint: str, wanted: EntityWanted, field: str, reusable: list[Entity]) -> Entity:
        model, version, app = self.offers.shared(
            wanted.entity_name, wanted.entity_version, f"{field}.entity_name"
        )
        return Entity(wanted=wanted, model=model, version=version, app=app, spec=None)

    def _provisioned(self, endpoint: str, wanted: EntityWanted, field: str, reusable: list[Entity]) -> Entity:
        offer = self.offers.to_run(wanted.entity_name, wanted.entity_version, f"{field}.entity_name")
        found = size(wanted, offer, self.config, field)
        spec = AppSpec(
            name="",
            model=offer.config.model_dump(mode="json", exclude={"provisioned"}, exclude_defaults=True),
            num_cpus=offer.num_cpus,
            num_gpus=offer.num_gpus,
            bundles=offer.bundles,
            strategy=offer.strategy,
            min_replicas=found.min_replicas,
            max_replicas=found.max_replicas,
        )
        kept = next((each for each in reusable if each.spec is not None and each.spec.runs_like(spec)), None)
        if kept is not None:
            reusable.remove(kept)
        name = kept.app if kept is not None else self._app(endpoint, wanted.name)
        return Entity(
            wanted=wanted,
            model=offer.config.name,
            version=offer.config.version,
            app=name,
            spec=replace(spec, name=name),
            min_throughput=found.min_throughput,
            max_throughput=found.max_throughput,
        )

    def _app(self, endpoint: str, entity: str) -> str:
        """A name, never used before, for an application."""
        slug = app_name(f"{endpoint}-{entity}").removeprefix("model-")[:SLUG_CHARS]
        return f"{RUN_TIME}{slug}-r{self.next_revision()}"


def _former(wanted: EntityWanted, former: Config | None) -> Entity | None:
    entities = former.entities if former is not None else ()
    return next((each for each in entities if each.wanted.name == wanted.name), None)


def _creator(wanted: EntityWanted, former: Config | None) -> str:
    found = _former(wanted, former)
    return "" if found is None else found.creator


def _created(wanted: EntityWanted, former: Config | None) -> float:
    found = _former(wanted, former)
    return 0.0 if found is None else found.created
