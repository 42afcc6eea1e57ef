"""An endpoint's AI gateway settings in request bodies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Final

from pydantic import Field

from serve_app.api.management.fields import ListOf, Matching
from serve_app.api.management.strict_body import StrictBody
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Boolean, Integer, OneOf, Text, Texts
from serve_app.endpoints.ai_gateway import PARTS, AiGateway
from serve_app.errors import InvalidField

MAX_LIMITS: Final = 100
MAX_CALLS: Final = 10**9
MAX_TOKENS: Final = 10**12
_Folder = Matching(r"[A-Za-z0-9_-]{1,255}", "1 to 255 characters of A-Z a-z 0-9 _ -")
_NAME_CHARS: Final = 256
_MAX_REGIONS: Final = 20
_MAX_KEYWORDS: Final = 1000
_MAX_TOPICS: Final = 100


class RateLimitBody(StrictBody):
    """A limit on calls or tokens per minute."""

    calls: Annotated[int | None, Integer(0, MAX_CALLS)] = doc("Requests in a minute")
    tokens: Annotated[int | None, Integer(0, MAX_TOKENS)] = doc("Tokens in a minute, of prompts and answers")
    renewal_period: Annotated[str | None, OneOf(("minute",))] = None
    key: Annotated[str | None, OneOf(("endpoint", "user", "user_group", "service_principal"))] = doc(
        "Whose requests count together: default endpoint, all of them"
    )
    principal: Annotated[str | None, Text(1, _NAME_CHARS)] = doc(
        "The user, group or service principal that is meant"
    )


class OldRateLimit(StrictBody):
    """A limit of the older route."""

    calls: Annotated[int | None, Integer(0, MAX_CALLS)] = doc(required=True)
    renewal_period: Annotated[str | None, OneOf(("minute",))] = doc(required=True)
    key: Annotated[str | None, OneOf(("endpoint", "user"))] = None


class PiiBody(StrictBody):
    behavior: Annotated[str | None, OneOf(("NONE", "BLOCK", "MASK"))] = None
    phone_regions: Annotated[tuple[str, ...] | None, Texts(_MAX_REGIONS, 2)] = doc(
        "Countries, such as US, whose telephone numbers are found without a country code too; Databricks "
        "has no such field"
    )


class RulesBody(StrictBody):
    """The rules for prompts, or for answers."""

    safety: Annotated[bool | None, Boolean] = None
    pii: PiiBody | None = None
    invalid_keywords: Annotated[tuple[str, ...] | None, Texts(_MAX_KEYWORDS, _NAME_CHARS)] = None
    valid_topics: Annotated[tuple[str, ...] | None, Texts(_MAX_TOPICS, _NAME_CHARS)] = None


class GuardrailsBody(StrictBody):
    input: RulesBody | None = None
    output: RulesBody | None = None
    model: Annotated[str | None, Text(1, _NAME_CHARS)] = doc(
        "The endpoint that judges safety and topics; without it, the one of the whole server. "
        "Databricks has no such field"
    )


class TrackingBody(StrictBody):
    enabled: Annotated[bool | None, Boolean] = None


class TableBody(StrictBody):
    """Where requests and answers are written."""

    enabled: Annotated[bool | None, Boolean] = None
    catalog_name: Annotated[str | None, _Folder] = None
    schema_name: Annotated[str | None, _Folder] = None
    table_name_prefix: Annotated[str | None, _Folder] = None


class AiGatewayBody(StrictBody):
    """PUT /api/2.0/serving-endpoints/{endpoint}/ai-gateway."""

    rate_limits: Annotated[
        Annotated[list[RateLimitBody], Field(max_length=MAX_LIMITS)] | None, ListOf(0, MAX_LIMITS)
    ] = doc("All of them hold")
    guardrails: GuardrailsBody | None = doc("Checks of prompts and answers")
    usage_tracking_config: TrackingBody | None = doc("Whether usage reports list the endpoint")
    fallback_config: TrackingBody | None = doc("Whether the other served entities are tried when one fails")
    inference_table_config: TableBody | None = doc("Requests and answers in Parquet files")

    def settings(self, prefix: str = "") -> dict[str, Any]:
        """The parts that the body sets, with their defaults filled in. Raises InvalidField, whose field name
        is preceded by `prefix`."""
        given = self.model_dump(include=set(PARTS), exclude_none=True)
        for switch in ("usage_tracking_config", "fallback_config"):
            if switch in given:  # clients leave out what is false
                given[switch].setdefault("enabled", False)
        plain = AiGateway.checked(given, prefix).model_dump(mode="json", exclude_none=True)
        return {name: plain[name] for name in PARTS if name in given}


class OldLimitsBody(StrictBody):
    """PUT /api/2.0/serving-endpoints/{endpoint}/rate-limits."""

    rate_limits: Annotated[
        Annotated[list[OldRateLimit], Field(max_length=MAX_LIMITS)] | None, ListOf(0, MAX_LIMITS)
    ] = None


def old_limits(listed: Iterable[OldRateLimit]) -> list[dict[str, Any]]:
    """Limits of the older route, converted to the AI gateway's form. Raises InvalidField."""
    found: list[dict[str, Any]] = []
    for number, limit in enumerate(listed):
        if limit.calls is None:
            raise InvalidField(
                f"rate_limits.{number}.calls", f"is required and must be an integer from 0 to {MAX_CALLS}"
            )
        found.append({"calls": limit.calls, "key": limit.key or "endpoint", "renewal_period": "minute"})
    return found
