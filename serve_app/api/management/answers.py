"""The shapes of the management API's answers."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict

from serve_app.endpoints.endpoint import Kind, Task


class Tag(TypedDict):
    """A tag that the user gave an endpoint."""

    key: str
    value: str


class Tags(TypedDict):
    """All tags of an endpoint."""

    tags: list[Tag]


class EntityStateJson(TypedDict):
    """The state of a served entity's replicas."""

    deployment: Literal[
        "DEPLOYMENT_CREATING",
        "DEPLOYMENT_READY",
        "DEPLOYMENT_RECOVERING",
        "DEPLOYMENT_FAILED",
        "DEPLOYMENT_ABORTED",
    ]
    deployment_state_message: NotRequired[str]


class EntityJson(TypedDict):
    """A served entity."""

    name: NotRequired[str]
    entity_name: str
    entity_version: NotRequired[str]
    provisioned_model_units: NotRequired[int]
    burst_scaling_enabled: NotRequired[bool]
    min_provisioned_throughput: NotRequired[int]
    max_provisioned_throughput: NotRequired[int]
    min_provisioned_concurrency: NotRequired[int]
    max_provisioned_concurrency: NotRequired[int]
    workload_size: NotRequired[str]
    workload_type: NotRequired[str]
    scale_to_zero_enabled: bool
    environment_vars: NotRequired[dict[str, str]]
    instance_profile_arn: NotRequired[str]
    creator: str
    creation_timestamp: int
    state: EntityStateJson


class RouteJson(TypedDict):
    """The share of one served entity, in percent."""

    served_model_name: str
    served_entity_name: str
    traffic_percentage: int


class TrafficJson(TypedDict):
    """The shares of all served entities."""

    routes: list[RouteJson]


class ConfigJson(TypedDict):
    """The configuration that serves."""

    config_version: int
    served_entities: list[EntityJson]
    traffic_config: TrafficJson


class PendingConfigJson(ConfigJson):
    """The configuration that is being started."""

    start_time: int


class StateJson(TypedDict):
    """Whether the endpoint answers, and the state of its newest configuration."""

    ready: Literal["READY", "NOT_READY"]
    config_update: Literal["NOT_UPDATING", "IN_PROGRESS", "UPDATE_FAILED", "UPDATE_CANCELED"]
    message: NotRequired[str]


class ShadowJson(TypedDict):
    """The share of the requests, in percent, that is copied to a served entity."""

    entity: str
    percentage: int
    max_concurrent: int


class EndpointJson(TypedDict):
    """An endpoint. Times are in milliseconds."""

    name: str
    id: str
    creator: str
    creation_timestamp: int
    last_updated_timestamp: int
    task: NotRequired[Task]
    endpoint_type: Literal["FOUNDATION_MODEL_API"]
    kind: Kind
    declared: bool
    state: StateJson
    config: NotRequired[ConfigJson]
    pending_config: NotRequired[PendingConfigJson]
    description: str
    tags: list[Tag]
    ai_gateway: SettingsJson
    shadow: NotRequired[ShadowJson]
    permission_level: Literal["CAN_MANAGE", "CAN_QUERY"]
    budget_policy_id: NotRequired[str]
    email_notifications: NotRequired[dict[str, list[str]]]
    route_optimized: NotRequired[bool]
    telemetry_config: NotRequired[dict[str, Any]]


class EndpointListJson(TypedDict):
    """The endpoints that the caller may see."""

    endpoints: list[EndpointJson]


class SettingsJson(TypedDict):
    """The settings for an endpoint's traffic."""

    rate_limits: NotRequired[list[dict[str, Any]]]
    guardrails: NotRequired[dict[str, Any]]
    usage_tracking_config: NotRequired[dict[str, Any]]
    fallback_config: NotRequired[dict[str, Any]]
    inference_table_config: NotRequired[dict[str, Any]]


class LimitsJson(TypedDict):
    """Limits of calls."""

    rate_limits: list[dict[str, Any]]


class NotificationsJson(TypedDict):
    """Recipients of mails; they are stored, but no mails are sent."""

    name: str
    email_notifications: dict[str, list[str]]


LevelName: TypeAlias = Literal["CAN_VIEW", "CAN_QUERY", "CAN_MANAGE"]


class PermissionJson(TypedDict):
    """One permission level of a grant."""

    permission_level: LevelName
    inherited: bool


class GrantJson(TypedDict):
    """What one user, group or service principal may do."""

    user_name: NotRequired[str]
    group_name: NotRequired[str]
    service_principal_name: NotRequired[str]
    display_name: str
    all_permissions: list[PermissionJson]


class PermissionsJson(TypedDict):
    """All grants of an endpoint."""

    object_id: str
    object_type: Literal["serving-endpoint"]
    access_control_list: list[GrantJson]


class LevelJson(TypedDict):
    """One permission level that a grant may have."""

    permission_level: LevelName
    description: str


class LevelsJson(TypedDict):
    """All permission levels that a grant may have."""

    permission_levels: list[LevelJson]


class LogsJson(TypedDict):
    """The newest lines of a log."""

    logs: str


class Nothing(TypedDict):
    """The answer of a route that has nothing to report."""
