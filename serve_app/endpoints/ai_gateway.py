"""What is asked of the traffic of one endpoint: limits, guardrails, records; in Databricks' words.

A deploy file may have them under `ai_gateway` of an endpoint; the management API sets them at run time.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from serve_app.config import ConfigModel


class RateLimit(ConfigModel):
    """Calls or tokens in a minute, of the whole endpoint or of each or one of its callers."""

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


class GuardrailRules(ConfigModel):
    """What prompts, or answers, must keep to."""

    pii: Pii | None = None
    invalid_keywords: tuple[str, ...] = Field(
        (), max_length=1000, description="Words that must not occur, whatever their case."
    )
    safety: bool = Field(False, description="What the safety model calls unsafe is blocked.")
    valid_topics: tuple[str, ...] = Field(
        (), max_length=100, description="Only these are let through; the safety model tells."
    )


class Guardrails(ConfigModel):
    """Checks before a prompt reaches a model, and before an answer leaves."""

    input: GuardrailRules | None = None
    output: GuardrailRules | None = None
    model: str | None = Field(
        None, max_length=256, description="Endpoint that judges safety and topics: any that chats."
    )


class InferenceTable(ConfigModel):
    """Every request and its answer, written to Parquet files."""

    enabled: bool = False
    catalog_name: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]{1,255}$", description="First folder.")
    schema_name: str | None = Field(None, pattern=r"^[A-Za-z0-9_-]{1,255}$", description="Second folder.")
    table_name_prefix: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_-]{1,255}$",
        description="The table is PREFIX_payload; none: by endpoint.",
    )


class Switch(ConfigModel):
    """Something that is on or off."""

    enabled: bool = Field(True, description="Whether it is on.")


class AiGateway(ConfigModel):
    """All of them; what is not set does nothing."""

    rate_limits: tuple[RateLimit, ...] = Field((), max_length=100)
    guardrails: Guardrails | None = None
    usage_tracking_config: Switch | None = Field(
        None, description="Usage is recorded in any case; off keeps its rows out of usage reports."
    )
    fallback_config: Switch | None = Field(None, description="Goes before `fallback` of the endpoint.")
    inference_table_config: InferenceTable | None = None


class Shadow(ConfigModel):
    """A share of the requests is sent to another entity too, whose answers nobody gets."""

    entity: str = Field(min_length=1, max_length=256, description="A served entity of the endpoint.")
    percentage: int = Field(ge=0, le=100, description="Of the requests that other entities answer.")
    max_concurrent: int = Field(8, ge=1, le=10_000, description="Copies under way; above, none is made.")
