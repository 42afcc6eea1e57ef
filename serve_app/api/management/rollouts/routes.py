"""Rollouts, shadows and comparisons of an endpoint's entities, and clients' feedback.

Databricks has no such routes; bodies, errors and times follow the rest of the API.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final

from pydantic import Field

from serve_app.api.management.answers import Nothing
from serve_app.api.management.command_route import Asked, command_entry
from serve_app.api.management.operation import CHANGES, ENDPOINT, OF_ENDPOINT, management
from serve_app.api.management.rollouts import answers
from serve_app.api.management.rollouts.bodies import FeedbackBody, RolloutBody, ShadowBody
from serve_app.api.management.strict_body import NoBody
from serve_app.api.openapi.operation import Answer, Parameter
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.errors import Conflict, InvalidField
from serve_app.types import Scope
from serve_app.types.control import CompareEntities, GetRollout, PutShadow, StopRollout

ROLLOUT: Final = f"{ENDPOINT}/rollout"
FEEDBACK: Final = "/serving-endpoints/{endpoint:path}/feedback"
LATEST_MS: Final = 1e15
CONFIDENCES: Final = 0.5, 0.9999

_ROLLOUT: Final = Answer(what="The rollout.", type=answers.RolloutJson)
_START: Final = management(
    "Move the traffic to an entity in guarded steps",
    _ROLLOUT,
    what="The traffic comes back by itself when it is certain that the entity breaks a guard.",
    body=RolloutBody,
    examples={
        "an hour": {"entity": "new", "interval_s": 900, "guards": {"max_error_rate": 0.02, "max_total_s": 10}}
    },
    conditions=CHANGES,
)
_GET: Final = management("The newest rollout of an endpoint", _ROLLOUT)
_STOP: Final = management(
    "Stop a rollout",
    Answer(what="The former traffic is back.", type=answers.RolloutJson),
    conditions=(*OF_ENDPOINT, Conflict),
)
_PROMOTE: Final = management(
    "End a rollout at once, with all traffic to its entity", _ROLLOUT, conditions=(*OF_ENDPOINT, Conflict)
)
_PUT_SHADOW: Final = management(
    "Copy a share of the requests to another entity",
    Answer(what="Gateways copy from now on.", type=Nothing),
    what="The answers of copies are thrown away. Their usage is recorded apart, and costs nothing.",
    body=ShadowBody,
    examples={"a tenth": {"entity": "new", "percentage": 10}},
    conditions=CHANGES,
)
_DELETE_SHADOW: Final = management(
    "Copy nothing any more",
    Answer(what="No copy is made.", type=Nothing),
    conditions=(*OF_ENDPOINT, Conflict),
)
_COMPARE: Final = replace(
    management(
        "Compare the entities of an endpoint",
        Answer(what="The entities, and a test of one metric.", type=answers.ComparisonJson),
    ),
    parameters=(
        Parameter(
            name="metric",
            place="query",
            what="`error_rate` (the default), `first_token_s`, `total_s`, `prompt_tokens`, "
            "`completion_tokens` or a metric of feedback.",
        ),
        Parameter(
            name="since_timestamp",
            place="query",
            type=Annotated[float, Field(ge=0, le=LATEST_MS)],
            what="Requests since then, in milliseconds; none: since the newest configuration.",
        ),
        Parameter(
            name="confidence",
            place="query",
            type=Annotated[float, Field(ge=CONFIDENCES[0], le=CONFIDENCES[1])],
            what="Of the intervals; 0.95 unless given.",
        ),
    ),
)
_FEEDBACK: Final = management(
    "Say what an answer was worth",
    Answer(what="It counts.", type=Nothing),
    what="Of a request of the same API key. A later value of the same metric replaces an earlier one.",
    body=FeedbackBody,
    examples={
        "a vote": {"request_id": "chatcmpl-0123456789abcdef0123456789abcdef", "metric": "thumbs", "value": 1}
    },
    conditions=CHANGES,
)


def routes(services: Services) -> Iterator[Entry]:
    """All routes of this module."""
    entry = partial(command_entry, services)
    yield entry("POST", f"{ROLLOUT}/promote", partial(_stop, promote=True), _PROMOTE)
    yield entry("POST", ROLLOUT, _start, _START)
    yield entry("GET", ROLLOUT, _get, _GET)
    yield entry("DELETE", ROLLOUT, _stop, _STOP)
    yield entry("PUT", f"{ENDPOINT}/shadow", _put_shadow, _PUT_SHADOW)
    yield entry("DELETE", f"{ENDPOINT}/shadow", _delete_shadow, _DELETE_SHADOW)
    yield entry("GET", f"{ENDPOINT}/comparison", _compare, _COMPARE)
    yield entry("POST", FEEDBACK, _give_feedback, _FEEDBACK, Scope.INFERENCE)


async def _start(asked: Asked[RolloutBody]) -> answers.RolloutJson:
    return answers.rollout_json(await asked.do(asked.body.command(asked.path["endpoint"])))


async def _get(asked: Asked[NoBody]) -> answers.RolloutJson:
    return answers.rollout_json(await asked.do(GetRollout(endpoint=asked.path["endpoint"])))


async def _stop(asked: Asked[NoBody], *, promote: bool = False) -> answers.RolloutJson:
    return answers.rollout_json(await asked.do(StopRollout(endpoint=asked.path["endpoint"], promote=promote)))


async def _put_shadow(asked: Asked[ShadowBody]) -> Nothing:
    await asked.do(PutShadow(endpoint=asked.path["endpoint"], shadow=asked.body.settings()))
    return {}


async def _delete_shadow(asked: Asked[NoBody]) -> Nothing:
    await asked.do(PutShadow(endpoint=asked.path["endpoint"], shadow=None))
    return {}


async def _compare(asked: Asked[NoBody]) -> answers.ComparisonJson:
    query = asked.query
    since = _number(query, "since_timestamp", 0, LATEST_MS)
    report = await asked.do(
        CompareEntities(
            endpoint=asked.path["endpoint"],
            metric=query.get("metric", "error_rate"),
            since=None if since is None else since / 1000,
            confidence=_number(query, "confidence", *CONFIDENCES) or 0.95,
        )
    )
    return answers.comparison_json(report)


async def _give_feedback(asked: Asked[FeedbackBody]) -> Nothing:
    await asked.do(asked.body.command(asked.path["endpoint"], asked.caller.key_id))
    return {}


def _number(query: Any, name: str, low: float, high: float) -> float | None:
    """The numeric parameter `name` of the query; None: the query does not set it. Raises InvalidField."""
    if name not in query:
        return None
    try:
        value = float(query[name])
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise InvalidField(name, f"must be a number from {low:g} to {high:.15g}")
    return value
