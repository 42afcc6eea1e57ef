"""An endpoint's configuration in bodies of create and update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import Field

from serve_app.api.management.fields import EntityName, ListOf, ModelVersion, TextMap
from serve_app.api.management.strict_body import StrictBody
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Boolean, Flag, Integer, OneOf, Text
from serve_app.endpoints.rules import MAX_ENTITIES, BrokenRule, checked_traffic, entity_name, repeated
from serve_app.errors import InvalidField
from serve_app.limits import MAX_STORED_CHARS
from serve_app.types.control import ConfigWanted, EntityWanted

_UNITS: Final = Integer(1, 10**6)
_RATE: Final = 10**9
_AT_ONCE: Final = 10**6
_PROVISIONED: Final = (
    *("provisioned_model_units", "min_provisioned_throughput", "max_provisioned_throughput"),
    *("min_provisioned_concurrency", "max_provisioned_concurrency", "workload_size"),
)
_STORED: Final = ("environment_vars", "instance_profile_arn", "workload_type")
_NO_EFFECT: Final = "Kept and returned; it has no effect here"


class ReplicaFields(StrictBody):
    """The number of replicas that one served entity should have."""

    name: Annotated[str | None, EntityName] = doc("Unique in the endpoint; without one MODEL-VERSION")
    provisioned_model_units: Annotated[int | None, _UNITS] = doc(
        "Dedicated replicas; see the documentation of this server"
    )
    burst_scaling_enabled: Flag = None
    min_provisioned_throughput: Annotated[int | None, Integer(0, _RATE)] = doc(
        "Tokens a second that are always there"
    )
    max_provisioned_throughput: Annotated[int | None, Integer(1, _RATE)] = doc(
        "Tokens a second that are admitted"
    )
    min_provisioned_concurrency: Annotated[int | None, Integer(0, _AT_ONCE)] = doc(
        "Requests at once that are always served"
    )
    max_provisioned_concurrency: Annotated[int | None, Integer(1, _AT_ONCE)] = doc(
        "Requests at once that are served at most"
    )
    workload_size: Annotated[str | None, OneOf(("Small", "Medium", "Large"))] = doc(
        "Requests at once, in three sizes"
    )
    workload_type: Annotated[str | None, Text(0, MAX_STORED_CHARS)] = doc(_NO_EFFECT)
    scale_to_zero_enabled: Flag = doc("Whether idle replicas stop", default=False)
    environment_vars: Annotated[dict[str, str] | None, TextMap] = doc(_NO_EFFECT)
    instance_profile_arn: Annotated[str | None, Text(0, MAX_STORED_CHARS)] = doc(_NO_EFFECT)

    def wanted(self, model: str, version: str) -> EntityWanted:
        self._check_bounds("throughput", self.min_provisioned_throughput, self.max_provisioned_throughput)
        self._check_bounds("concurrency", self.min_provisioned_concurrency, self.max_provisioned_concurrency)
        return EntityWanted(
            entity_name=model,
            entity_version=version,
            name=self.name or entity_name(model, version),
            **{name: getattr(self, name) for name in (*_PROVISIONED, "burst_scaling_enabled")},
            scale_to_zero_enabled=bool(self.scale_to_zero_enabled),
            stored={name: given for name in _STORED if (given := getattr(self, name)) is not None},
        )

    @staticmethod
    def _check_bounds(what: str, low: int | None, high: int | None) -> None:
        if low is not None and high is not None and low > high:
            raise InvalidField(f"min_provisioned_{what}", f"must not exceed max_provisioned_{what}")


class EntityBody(ReplicaFields):
    """A served entity with the API's current field names."""

    entity_name: Annotated[str | None, EntityName] = doc("The model", required=True)
    entity_version: Annotated[str | None, ModelVersion] = doc(
        "The model's version; without one the newest that the server knows"
    )
    external_model: Any = doc("Not served: an error")

    def entity(self) -> EntityWanted:
        """Raises InvalidField."""
        if self.external_model is not None:
            raise InvalidField("external_model", "is not served here; name a model of this server")
        if self.entity_name is None:
            raise InvalidField("entity_name", "is required")
        return self.wanted(self.entity_name, self.entity_version or "")


class ServedModelBody(ReplicaFields):
    """A served entity with the API's older field names."""

    model_name: Annotated[str | None, EntityName] = doc("As `entity_name`", required=True)
    model_version: Annotated[str | None, ModelVersion] = doc("As `entity_version`")

    def entity(self) -> EntityWanted:
        """Raises InvalidField."""
        if self.model_name is None:
            raise InvalidField("model_name", "is required")
        return self.wanted(self.model_name, self.model_version or "")


class TrafficRoute(StrictBody):
    """The share of one served entity."""

    served_model_name: Annotated[str | None, EntityName] = doc("The served entity")
    served_entity_name: Annotated[str | None, EntityName] = doc("The same")
    traffic_percentage: Annotated[int | None, Integer(0, 100)] = doc(
        "Its share of the requests; all shares add up to 100", required=True
    )

    @property
    def entity(self) -> str | None:
        """The name of the served entity; None: the two fields differ, or neither is set."""
        names = {self.served_model_name, self.served_entity_name} - {None}
        return names.pop() if len(names) == 1 else None


class TrafficBody(StrictBody):
    routes: Annotated[
        Annotated[list[TrafficRoute], Field(min_length=1, max_length=MAX_ENTITIES)] | None,
        ListOf(1, MAX_ENTITIES),
    ] = doc(required=True)

    def shares(self, names: Sequence[str]) -> dict[str, int]:
        """Percentages by entity; `names` are the existing entities. Raises InvalidField."""
        found: dict[str, int] = {}
        for number, route in enumerate(self.routes or ()):
            where = f"traffic_config.routes.{number}"
            entity = route.entity
            if entity is None or entity not in names:
                raise InvalidField(
                    f"{where}.served_entity_name", f"must be one of the served entities: {', '.join(names)}"
                )
            if entity in found:
                raise InvalidField(f"{where}.served_entity_name", f"{entity} is there twice")
            if route.traffic_percentage is None:
                raise InvalidField(
                    f"{where}.traffic_percentage", "is required and must be an integer from 0 to 100"
                )
            found[entity] = route.traffic_percentage
        try:
            return checked_traffic(found, names)
        except BrokenRule as broken:
            raise InvalidField("traffic_config.routes", broken.problem) from None


class AutoCapture(StrictBody):
    """The inference table setting from before the AI gateway."""

    catalog_name: Annotated[str | None, Text(0, MAX_STORED_CHARS)] = None
    schema_name: Annotated[str | None, Text(0, MAX_STORED_CHARS)] = None
    table_name_prefix: Annotated[str | None, Text(0, MAX_STORED_CHARS)] = None
    enabled: Annotated[bool | None, Boolean] = None


class UpdateBody(StrictBody):
    """A configuration, or the part of it that is to change."""

    name: Annotated[str | None, Text(0, MAX_STORED_CHARS)] = doc(
        "The endpoint's name once more; the other one counts"
    )
    served_entities: Annotated[
        Annotated[list[EntityBody], Field(min_length=1, max_length=MAX_ENTITIES)] | None,
        ListOf(1, MAX_ENTITIES),
    ] = doc("The models that answer")
    served_models: Annotated[
        Annotated[list[ServedModelBody], Field(min_length=1, max_length=MAX_ENTITIES)] | None,
        ListOf(1, MAX_ENTITIES),
    ] = doc("As `served_entities`, by older names")
    traffic_config: TrafficBody | None = doc("Their shares of the requests; one entity has all of them")
    auto_capture_config: AutoCapture | None = doc(
        "Refused where it is on: `ai_gateway` has `inference_table_config`"
    )

    @property
    def is_whole(self) -> bool:
        """Whether the body is a complete configuration, so that nothing is taken from the former one."""
        listed = self.served_entities or self.served_models
        return listed is not None and (self.traffic_config is not None or len(listed) == 1)

    def wanted(self, former: ConfigWanted | None = None, prefix: str = "") -> ConfigWanted:
        """The wanted configuration; missing parts are taken from `former`. Raises InvalidField.

        `prefix` precedes the names of fields in errors.
        """
        try:
            return self._wanted(former)
        except InvalidField as error:
            raise error.renamed(f"{prefix}{error.param}") from error

    def _wanted(self, former: ConfigWanted | None) -> ConfigWanted:
        if self.auto_capture_config is not None and self.auto_capture_config.enabled is not False:
            raise InvalidField(
                "auto_capture_config", "is not kept; use inference_table_config of ai_gateway instead"
            )
        entities = self._entities()
        if not entities:
            if former is None or self.traffic_config is None:
                raise InvalidField("served_entities", f"is required: a list of 1 to {MAX_ENTITIES} objects")
            entities = former.entities
        names = [entity.name for entity in entities]
        if (twice := repeated(names)) is not None:
            raise InvalidField("served_entities", f"{twice} is there twice; give each a name of its own")
        return ConfigWanted(entities=entities, traffic=self._traffic(names, former))

    def _entities(self) -> tuple[EntityWanted, ...]:
        if self.served_entities is not None and self.served_models is not None:
            raise InvalidField("served_models", "means served_entities; give one of the two")
        listed: Sequence[EntityBody | ServedModelBody] = self.served_entities or self.served_models or ()
        where = "served_models" if self.served_entities is None else "served_entities"
        found = []
        for number, each in enumerate(listed):
            try:
                found.append(each.entity())
            except InvalidField as error:
                raise error.renamed(f"{where}.{number}.{error.param}") from error
        return tuple(found)

    def _traffic(self, names: Sequence[str], former: ConfigWanted | None) -> dict[str, int]:
        if self.traffic_config is not None:
            return self.traffic_config.shares(names)
        if len(names) == 1:
            return {names[0]: 100}
        if former is not None and former.traffic.keys() <= set(names):
            return dict(former.traffic)
        raise InvalidField(
            "traffic_config", f"is required: the shares of {', '.join(names)}, adding up to 100"
        )
