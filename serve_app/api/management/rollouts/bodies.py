"""Bodies of rollouts, shadows and feedback."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from serve_app import limits
from serve_app.api.management.fields import EntityName
from serve_app.api.management.strict_body import StrictBody
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Integer, Integers, Number, Text
from serve_app.errors import InvalidField
from serve_app.types.control import GiveFeedback, Guards, StartRollout

_PERCENT = 100
_MAX_COPIES = 10_000
_MAX_ID_CHARS = 256
_MAX_METRIC_CHARS = 64


class GuardsBody(StrictBody):
    """The limits that the new entity must keep to."""

    max_error_rate: Annotated[float | None, Number(0, 1)] = doc(
        "Share of its requests that may fail; 1: any", default=0.05
    )
    max_first_token_s: Annotated[float | None, Number(0, limits.MAX_GUARDED_S)] = doc(
        "95th percentile of the time to the first token"
    )
    max_total_s: Annotated[float | None, Number(0, limits.MAX_GUARDED_S)] = doc(
        "95th percentile of the time to the last byte"
    )
    min_requests: Annotated[int | None, Integer(1, limits.MAX_GUARD_REQUESTS)] = doc(
        "That a step sees before the next one", default=20
    )


class RolloutBody(StrictBody):
    """POST /api/2.0/serving-endpoints/{endpoint}/rollout."""

    entity: Annotated[str | None, EntityName] = doc("The served entity that gets the traffic", required=True)
    steps: Annotated[tuple[int, ...] | None, Integers(limits.MAX_ROLLOUT_STEPS, 1, _PERCENT)] = doc(
        "Rising percentages, 100 the last; none: 5, 25, 50, 100"
    )
    interval_s: Annotated[float | None, Number(limits.MIN_STEP_S, limits.MAX_STEP_S)] = doc(
        "Seconds that a step lasts at least", default=60
    )
    guards: GuardsBody | None = doc("Bounds, beyond which the former traffic comes back by itself")

    def command(self, endpoint: str) -> StartRollout:
        """Raises InvalidField."""
        if self.entity is None:
            raise InvalidField("entity", "is required: the name of a served entity")
        given: dict[str, Any] = self.model_dump(include={"steps", "interval_s"}, exclude_none=True)
        guards = self.guards.model_dump(exclude_none=True) if self.guards is not None else {}
        known = {name: guards[name] for name in GuardsBody.model_fields if name in guards}
        return StartRollout(endpoint=endpoint, entity=self.entity, guards=replace(Guards(), **known), **given)


class ShadowBody(StrictBody):
    """PUT /api/2.0/serving-endpoints/{endpoint}/shadow."""

    entity: Annotated[str | None, EntityName] = doc("The served entity that gets copies", required=True)
    percentage: Annotated[int | None, Integer(0, _PERCENT)] = doc(
        "Of the requests that other entities answer", required=True
    )
    max_concurrent: Annotated[int | None, Integer(1, _MAX_COPIES)] = doc(
        "Copies under way in one gateway; above, none is made", default=8
    )

    def settings(self) -> dict[str, Any]:
        """The settings as an `endpoints.ai_gateway.Shadow`. Raises InvalidField."""
        if self.entity is None:
            raise InvalidField("entity", "is required: the name of a served entity")
        if self.percentage is None:
            raise InvalidField("percentage", "is required: an integer from 0 to 100")
        return self.model_dump(include={"entity", "percentage", "max_concurrent"}, exclude_none=True)


class FeedbackBody(StrictBody):
    """POST /serving-endpoints/{endpoint}/feedback."""

    request_id: Annotated[str | None, Text(1, _MAX_ID_CHARS)] = doc(
        "The `id` of the answer, or its header `x-request-id` if it begins with `req_`", required=True
    )
    metric: Annotated[str | None, Text(1, _MAX_METRIC_CHARS)] = doc(
        "A name of your own, such as `thumbs`", required=True
    )
    value: Annotated[float | None, Number(-limits.MAX_FEEDBACK, limits.MAX_FEEDBACK)] = doc(
        "0 and 1 for a vote; any number for a rating", required=True
    )

    def command(self, endpoint: str, key_id: str) -> GiveFeedback:
        """Raises InvalidField."""
        for name in self.required():
            if getattr(self, name) is None:
                raise InvalidField(name, "is required")
        return GiveFeedback(
            request_id=self.request_id or "",
            metric=self.metric or "",
            value=self.value or 0.0,
            key_id=key_id,
            endpoint=endpoint,
        )
