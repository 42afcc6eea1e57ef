"""Rules for the traffic of one endpoint (limits, guardrails, records), named as in Databricks.

A deploy file may set them under an endpoint's `ai_gateway`; the management API sets them at run time.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from serve_app.config import ConfigModel, first_problem
from serve_app.errors import InvalidField

Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=256)]
Region = Annotated[str, StringConstraints(pattern="^[A-Z]{2}$")]

CATALOG: Final = "main"  # of inference tables, if the settings name none
SCHEMA: Final = "default"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")


def _check_installed(package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise ValueError(
            f"needs the package {package}, which is not installed: pip install 'serve-app[{extra}]'"
        )


class RateLimit(ConfigModel):
    """A limit on calls or tokens per minute: for the whole endpoint, for each caller, or for one caller."""

    calls: int | None = Field(None, ge=0, le=10**9, description="Requests in a minute.")
    tokens: int | None = Field(None, ge=0, le=10**12, description="Tokens in a minute, prompt and output.")
    renewal_period: Literal["minute"] = Field("minute", description="Databricks has no other.")
    key: Literal["endpoint", "user", "user_group", "service_principal"] = Field(
        "endpoint",
        description="Who shares the limit: all callers; each user; the members of the group `principal`; the "
        "service principal `principal`.",
    )
    principal: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="A user, group or service principal; none: each user.",
    )

    @model_validator(mode="after")
    def _agrees(self) -> RateLimit:
        if (self.calls is None) == (self.tokens is None):
            raise ValueError("one of calls and tokens must be set, and not both")
        if self.key in ("user_group", "service_principal") and self.principal is None:
            raise ValueError(f"principal: a limit of key {self.key!r} must name its principal")
        if self.key == "endpoint" and self.principal is not None:
            raise ValueError("principal: a limit of key 'endpoint' has none")
        return self


class Pii(ConfigModel):
    """Personal data: e-mail addresses, telephone, credit card, bank account and social security numbers."""

    behavior: Literal["NONE", "BLOCK", "MASK"] = Field("NONE", description="What happens where it is found.")
    phone_regions: tuple[Region, ...] = Field(
        ("US",),
        max_length=20,
        description="Countries whose telephone numbers are found without a country code too.",
    )

    @model_validator(mode="after")
    def _can_be_found(self) -> Pii:
        if self.behavior != "NONE":
            _check_installed("phonenumbers", "guardrails")
        return self


class GuardrailRules(ConfigModel):
    """The rules for prompts, or for answers."""

    pii: Pii | None = None
    invalid_keywords: tuple[Words, ...] = Field(
        (), max_length=1000, description="Whole words and phrases that must not occur, whatever their case."
    )
    safety: bool = Field(False, description="What the model that judges calls unsafe is blocked.")
    valid_topics: tuple[Words, ...] = Field(
        (), max_length=100, description="Only these are allowed; the judging model decides."
    )

    @property
    def is_judged(self) -> bool:
        """Whether the rules need a judging model."""
        return self.safety or bool(self.valid_topics)

    @property
    def masks(self) -> bool:
        """Whether personal data in a text may be masked, so that the text passes."""
        return self.pii is not None and self.pii.behavior == "MASK"

    def __bool__(self) -> bool:
        """Whether there is any rule."""
        has_pii = self.pii is not None and self.pii.behavior != "NONE"
        return has_pii or bool(self.invalid_keywords) or self.is_judged


class Guardrails(ConfigModel):
    """Checks before a prompt reaches a model, and before an answer leaves."""

    input: GuardrailRules | None = None
    output: GuardrailRules | None = None
    model: str | None = Field(
        None,
        max_length=256,
        description="Endpoint that judges safety and topics: any that chats. None: the gateway's "
        "`guardrails_model`.",
    )

    def check_judge(self, guardrails_model: str | None) -> None:
        """Raises ValueError if a judging model is needed but named neither here nor in `guardrails_model`."""
        if self.model is not None or guardrails_model is not None:
            return
        for side in ("input", "output"):
            rules: GuardrailRules | None = getattr(self, side)
            if rules is not None and rules.is_judged:
                raise ValueError(
                    f"must name an endpoint that chats, because {side} has safety or valid_topics, which a "
                    "model judges; `guardrails_model` in the gateway's `args` can name one for all endpoints"
                )


class InferenceTable(ConfigModel):
    """The settings for writing every request and its answer to Parquet files."""

    enabled: bool = Field(False, description="Write rows. Needs the extra `tables`.")
    catalog_name: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]{1,255}$", description="First folder.")
    schema_name: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]{1,255}$", description="Second folder.")
    table_name_prefix: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_-]{1,255}$",
        description="The table is PREFIX_payload; none: by endpoint.",
    )

    def table(self, endpoint: str) -> tuple[str, str, str]:
        """Catalogue, schema and table for the endpoint of this name."""
        prefix = self.table_name_prefix or _UNSAFE.sub("_", endpoint)
        return self.catalog_name or CATALOG, self.schema_name or SCHEMA, f"{prefix}_payload"

    @model_validator(mode="after")
    def _can_be_written(self) -> InferenceTable:
        if self.enabled:
            _check_installed("pyarrow", "tables")
        return self


class Switch(ConfigModel):
    """A feature that is on or off."""

    enabled: bool = Field(True, description="Whether it is on.")


class AiGateway(ConfigModel):
    """All settings; one that is not set has no effect."""

    rate_limits: tuple[RateLimit, ...] = Field(
        (), max_length=100, description="All of them hold; the first that is used up refuses."
    )
    guardrails: Guardrails | None = None
    usage_tracking_config: Switch | None = Field(
        None, description="Usage is recorded in any case; off keeps its rows out of usage reports."
    )
    fallback_config: Switch | None = Field(None, description="Goes before `fallback` of the endpoint.")
    inference_table_config: InferenceTable | None = None

    @property
    def tracks_usage(self) -> bool:
        """Whether usage reports list the endpoint."""
        return self.usage_tracking_config is None or self.usage_tracking_config.enabled

    @classmethod
    def checked(cls, raw: dict[str, Any], prefix: str = "") -> Self:
        """The settings in `raw`. Raises InvalidField, with `prefix` before the path of the field."""
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            path, message = first_problem(error)
            raise InvalidField(f"{prefix}{path}" or None, message) from None


PARTS: Final = tuple(AiGateway.model_fields)  # the API replaces each part as a whole


class Shadow(ConfigModel):
    """Sends a copy of a share of the requests to another entity, and drops that entity's answers."""

    entity: str = Field(min_length=1, max_length=256, description="A served entity of the endpoint.")
    percentage: int = Field(ge=0, le=100, description="Of the requests that other entities answer.")
    max_concurrent: int = Field(8, ge=1, le=10_000, description="Copies under way; above, none is made.")
