"""Endpoints made at run time: their wanted configuration, and their state."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from serve_app.types.control.command import Change, Command, Done


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityWanted:
    """A served entity as its creator described it. None: not given."""

    entity_name: str  # the model
    entity_version: str = ""
    name: str = ""  # unique in the endpoint; none: ENTITY_NAME-ENTITY_VERSION
    provisioned_model_units: int | None = None
    burst_scaling_enabled: bool | None = None
    min_provisioned_throughput: int | None = None  # tokens a second
    max_provisioned_throughput: int | None = None
    min_provisioned_concurrency: int | None = None  # requests at once
    max_provisioned_concurrency: int | None = None
    workload_size: str | None = None  # "Small", "Medium" or "Large"
    scale_to_zero_enabled: bool = False
    stored: dict[str, Any] = field(default_factory=dict)  # fields that are returned and have no effect

    @property
    def is_sized(self) -> bool:
        """Whether the entity has replicas of its own, and a fixed number of them."""
        return any(
            each is not None
            for each in (
                *(self.provisioned_model_units, self.workload_size),
                *(self.min_provisioned_throughput, self.max_provisioned_throughput),
                *(self.min_provisioned_concurrency, self.max_provisioned_concurrency),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigWanted:
    """The wanted entities and traffic of an endpoint."""

    entities: tuple[EntityWanted, ...]  # 1 to 10
    traffic: dict[str, int]  # entity's name -> percentage, adding up to 100; empty: all to the only entity
    stored: dict[str, Any] = field(default_factory=dict)


class UpdateState(StrEnum):
    """The state of an endpoint's newest configuration, in the words of the Databricks API."""

    NOT_UPDATING = "NOT_UPDATING"
    IN_PROGRESS = "IN_PROGRESS"
    UPDATE_FAILED = "UPDATE_FAILED"
    UPDATE_CANCELED = "UPDATE_CANCELED"


class EntityState(StrEnum):
    """The state of a served entity's replicas, in the words of the Databricks API."""

    CREATING = "DEPLOYMENT_CREATING"
    READY = "DEPLOYMENT_READY"
    RECOVERING = "DEPLOYMENT_RECOVERING"
    FAILED = "DEPLOYMENT_FAILED"
    ABORTED = "DEPLOYMENT_ABORTED"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityShown:
    """A served entity and its state."""

    wanted: EntityWanted  # with its name filled in
    state: EntityState
    message: str = ""  # what to do where something is wrong
    creator: str = ""
    created: float = 0.0  # Unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigShown:
    """One configuration of an endpoint."""

    version: int  # from 1
    entities: tuple[EntityShown, ...]
    traffic: dict[str, int]
    stored: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointShown:
    """An endpoint and its state. An endpoint from the deploy file is `declared`, and read-only."""

    name: str
    id: str  # never used again, not even by another endpoint of the same name
    kind: str  # see endpoints.endpoint.Kind
    task: str | None  # see endpoints.endpoint.Task; None: not known before a model is up
    creator: str
    created: float  # Unix seconds
    updated: float
    is_ready: bool
    update: UpdateState
    message: str = ""  # why an update failed, and what to do
    config: ConfigShown | None = None  # the one that serves; None: none did yet
    pending: ConfigShown | None = None  # one that starts, or failed
    pending_since: float = 0.0  # when the newest configuration was asked for; Unix seconds
    description: str = ""
    tags: dict[str, str] = field(default_factory=dict)  # key -> value
    ai_gateway: dict[str, Any] = field(default_factory=dict)  # see endpoints.ai_gateway.AiGateway
    shadow: dict[str, Any] | None = None  # see endpoints.ai_gateway.Shadow; None: nothing is copied
    declared: bool = False
    stored: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointList:
    """Endpoints, by name."""

    endpoints: tuple[EndpointShown, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateEndpoint(Command[EndpointShown]):
    """Make an endpoint. The reply comes before the endpoint is up."""

    name: str
    config: ConfigWanted
    is_provisioned: bool
    task: str | None = None
    description: str = ""
    tags: dict[str, str] = field(default_factory=dict)
    ai_gateway: dict[str, Any] = field(default_factory=dict)
    stored: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateConfig(Command[EndpointShown]):
    """Replace the configuration. The former configuration serves until the new one is ready.

    Afterwards the endpoint is provisioned if one of its entities has a size, otherwise pay-per-token.
    """

    name: str
    config: ConfigWanted


@dataclass(frozen=True, slots=True, kw_only=True)
class GetEndpoint(Command[EndpointShown]):
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ListEndpoints(Command[EndpointList]):
    """List the endpoints that the caller may see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteEndpoint(Change[Done]):
    """Remove an endpoint. The name is free at once; the replicas finish their running requests."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutAiGateway(Change[EndpointShown]):
    """Replace the named parts of the settings; a part that is None is removed."""

    name: str
    settings: dict[str, Any]

    @property
    def changed_endpoint(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchTags(Command[EndpointShown]):
    name: str
    add: dict[str, str] = field(default_factory=dict)
    delete: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PutStored(Command[EndpointShown]):
    """Replace the named fields of the endpoint's `stored`; a field that is None is removed."""

    name: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Logs:
    """The newest lines of a log."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLogs(Command[Logs]):
    """Read the logs of an entity's replicas, or the events of its start."""

    name: str
    entity: str
    is_build: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What one user, group or service principal may do with an endpoint."""

    principal: str
    kind: str  # "user_name", "group_name" or "service_principal_name"
    level: str  # "CAN_VIEW", "CAN_QUERY" or "CAN_MANAGE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """The grants of an endpoint. Without grants every key with the required scope may use the endpoint."""

    endpoint_id: str
    grants: tuple[Grant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GetPermissions(Command[Permissions]):
    endpoint_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutPermissions(Change[Permissions]):
    """Replace all grants, or only those of the named principals."""

    endpoint_id: str
    grants: tuple[Grant, ...]
    replaces_all: bool
