"""The bodies that create an endpoint, or replace its configuration with one of provisioned throughput."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from serve_app.api.management.endpoints.config_body import UpdateBody
from serve_app.api.management.endpoints.gateway_body import AiGatewayBody, OldRateLimit, old_limits
from serve_app.api.management.endpoints.tags_body import TagBody, tags_of
from serve_app.api.management.fields import EndpointName, ListOf
from serve_app.api.management.strict_body import StrictBody
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Flag, OneOf, Text
from serve_app.endpoints.endpoint import Task
from serve_app.endpoints.rules import RESERVED
from serve_app.errors import InvalidField
from serve_app.limits import MAX_DESCRIPTION_CHARS, MAX_STORED_CHARS, MAX_STORED_TEXTS, MAX_TAGS
from serve_app.types.control import ConfigWanted, CreateEndpoint

# Fields of the product that mean nothing here. They are kept and returned.
STORED: Final = ("budget_policy_id", "email_notifications", "route_optimized", "telemetry_config")
_NO_EFFECT: Final = "Kept and returned; it has no effect here"
_PT: Final = "pt"  # a route of its own below the endpoints
_Addresses = Annotated[
    Annotated[list[str], Field(max_length=MAX_STORED_TEXTS)] | None, ListOf(0, MAX_STORED_TEXTS, "strings")
]


class Recipients(StrictBody):
    """Recipients of mails. They are only stored, since this server sends no mails."""

    on_update_failure: _Addresses = None
    on_update_success: _Addresses = None


class EndpointFields(StrictBody):
    """The fields that both ways to create an endpoint share."""

    name: Annotated[str | None, EndpointName] = doc(
        f"What clients call; not {', '.join(sorted({*RESERVED, _PT}))}", required=True
    )
    config: UpdateBody | None = doc("What answers", required=True)
    ai_gateway: AiGatewayBody | None = doc("Limits, guardrails and records")
    tags: Annotated[Annotated[list[TagBody], Field(max_length=MAX_TAGS)] | None, ListOf(0, MAX_TAGS)] = doc(
        "Words of your own, returned with the endpoint"
    )
    budget_policy_id: Annotated[str | None, Text(0, MAX_STORED_CHARS)] = doc(_NO_EFFECT)
    email_notifications: Recipients | None = doc(_NO_EFFECT)

    def checked_name(self) -> str:
        """Raises InvalidField."""
        if self.name is None:
            raise InvalidField("name", "is required: 1 to 63 characters of A-Z a-z 0-9 . _ -")
        if self.name in RESERVED or self.name == _PT:
            raise InvalidField("name", f"{self.name} is reserved for a route; choose another name")
        return self.name

    def checked_config(self) -> ConfigWanted:
        """Raises InvalidField."""
        if self.config is None:
            raise InvalidField("config", "is required, with its served_entities")
        return self.config.wanted(prefix="config.")

    def settings(self) -> dict[str, Any]:
        """The AI gateway's settings. Raises InvalidField."""
        return {} if self.ai_gateway is None else self.ai_gateway.settings("ai_gateway.")

    def stored(self) -> dict[str, Any]:
        """The fields that are stored but have no effect."""
        return stored_of(self, STORED)


class NotificationsBody(StrictBody):
    """PATCH /api/2.0/serving-endpoints/{endpoint}/notifications."""

    email_notifications: Recipients | None = None

    def stored(self) -> dict[str, Any]:
        """The field to store; if it is None, the stored value is removed."""
        return {"email_notifications": None, **stored_of(self, STORED)}


class TelemetryBody(StrictBody):
    """PATCH /api/2.0/serving-endpoints/{endpoint}/telemetry-config."""

    telemetry_config: dict[str, Any] | None = None

    def stored(self) -> dict[str, Any]:
        """The field to store; if it is None, the stored value is removed."""
        return {"telemetry_config": None, **stored_of(self, STORED)}


class CreateBody(EndpointFields):
    """POST /api/2.0/serving-endpoints."""

    description: Annotated[str | None, Text(0, MAX_DESCRIPTION_CHARS)] = doc("For people")
    rate_limits: Annotated[Annotated[list[OldRateLimit], Field(max_length=100)] | None, ListOf(0, 100)] = doc(
        "As `ai_gateway.rate_limits`, which goes before them"
    )
    route_optimized: Flag = doc(_NO_EFFECT)
    telemetry_config: dict[str, Any] | None = doc(_NO_EFFECT)
    task: Annotated[str | None, OneOf(Task)] = doc(
        "What the endpoint does; without it the server asks the model"
    )

    def command(self) -> CreateEndpoint:
        """Raises InvalidField."""
        name, config, settings = self.checked_name(), self.checked_config(), self.settings()
        if self.rate_limits is not None:
            settings = {"rate_limits": old_limits(self.rate_limits), **settings}
        return CreateEndpoint(
            name=name,
            config=config,
            is_provisioned=any(entity.is_sized for entity in config.entities),
            task=self.task,
            description=self.description or "",
            tags=tags_of(self.tags or ()),
            ai_gateway=settings,
            stored=self.stored(),
        )


class ProvisionedBody(StrictBody):
    """PUT /api/2.0/serving-endpoints/pt/{endpoint}/config."""

    config: UpdateBody | None = doc(required=True)

    def checked_config(self) -> UpdateBody:
        """Raises InvalidField."""
        return provisioned(self.config)


class CreateProvisionedBody(EndpointFields):
    """POST /api/2.0/serving-endpoints/pt."""

    def command(self) -> CreateEndpoint:
        """Raises InvalidField."""
        name, _ = self.checked_name(), provisioned(self.config)
        return CreateEndpoint(
            name=name,
            config=self.checked_config(),
            is_provisioned=True,
            tags=tags_of(self.tags or ()),
            ai_gateway=self.settings(),
            stored=self.stored(),
        )


def provisioned(config: UpdateBody | None) -> UpdateBody:
    """A configuration in which every entity says how much throughput is bought. Raises InvalidField."""
    if config is None:
        raise InvalidField("config", "is required, with its served_entities")
    listed = config.served_entities if config.served_entities is not None else config.served_models
    for number, each in enumerate(listed or ()):
        if each.provisioned_model_units is None:
            where = "served_entities" if config.served_entities is not None else "served_models"
            raise InvalidField(
                f"config.{where}.{number}.provisioned_model_units",
                "is required and must be an integer from 1 to 1000000",
            )
    return config


def stored_of(body: StrictBody, names: tuple[str, ...]) -> dict[str, Any]:
    """The fields among `names` that a body sets, as plain values."""
    dumped = body.model_dump(include=set(names), exclude_none=True)
    return {name: dumped[name] for name in names if name in dumped}
