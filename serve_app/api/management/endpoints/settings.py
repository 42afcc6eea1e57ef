"""Settings of an endpoint's traffic, and its tags: limits, guardrails, notes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from serve_app.api.management.answers import EndpointJson, LimitsJson, NotificationsJson, SettingsJson, Tags
from serve_app.api.management.command_route import Asked, command_entry
from serve_app.api.management.endpoints.create_body import NotificationsBody, TelemetryBody
from serve_app.api.management.endpoints.gateway_body import AiGatewayBody, OldLimitsBody, old_limits
from serve_app.api.management.endpoints.shown import endpoint_json, tags_json
from serve_app.api.management.endpoints.tags_body import PatchTagsBody, tags_of
from serve_app.api.management.operation import CHANGES, ENDPOINT, management
from serve_app.api.openapi.operation import Answer
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.endpoints.ai_gateway import PARTS
from serve_app.types.control import PatchTags, PutAiGateway, PutStored

_AI_GATEWAY: Final = management(
    "Set limits, guardrails and records",
    Answer(what="What is in force now.", type=SettingsJson),
    what="Replaces all of it: what the body leaves out is off from now on.",
    body=AiGatewayBody,
    examples={
        "a limit and a mask": {
            "rate_limits": [{"calls": 100, "key": "user", "renewal_period": "minute"}],
            "guardrails": {"output": {"pii": {"behavior": "MASK"}}},
        }
    },
    conditions=CHANGES,
)
_RATE_LIMITS: Final = management(
    "Set rate limits by the older route",
    Answer(what="The limits of calls that are in force now.", type=LimitsJson),
    what="Replaces `rate_limits` of `ai-gateway`, and nothing else.",
    body=OldLimitsBody,
    examples={"of all": {"rate_limits": [{"calls": 100, "key": "endpoint", "renewal_period": "minute"}]}},
    conditions=CHANGES,
)
_TAGS: Final = management(
    "Add and remove tags",
    Answer(what="All tags.", type=Tags),
    body=PatchTagsBody,
    examples={"one of each": {"add_tags": [{"key": "team", "value": "sea"}], "delete_tags": ["spare"]}},
    conditions=CHANGES,
)
_NOTIFICATIONS: Final = management(
    "Store the recipients of mails",
    Answer(what="What is noted.", type=NotificationsJson),
    what="Kept and returned; this server sends no mail.",
    body=NotificationsBody,
    conditions=CHANGES,
)
_TELEMETRY: Final = management(
    "Note where telemetry is to go",
    Answer(what="The endpoint.", type=EndpointJson),
    what="Kept and returned; `/metrics` and the usage records show what happens.",
    body=TelemetryBody,
    conditions=CHANGES,
)


def routes(services: Services) -> Iterator[Entry]:
    """All routes of this module."""
    entry = partial(command_entry, services)
    yield entry("PUT", f"{ENDPOINT}/ai-gateway", _put_ai_gateway, _AI_GATEWAY)
    yield entry("PUT", f"{ENDPOINT}/rate-limits", _put_rate_limits, _RATE_LIMITS)
    yield entry("PATCH", f"{ENDPOINT}/tags", _patch_tags, _TAGS)
    yield entry("PATCH", f"{ENDPOINT}/notifications", _patch_notifications, _NOTIFICATIONS)
    yield entry("PATCH", f"{ENDPOINT}/telemetry-config", _patch_telemetry, _TELEMETRY)


async def _put_ai_gateway(asked: Asked[AiGatewayBody]) -> SettingsJson:
    settings: dict[str, Any] = {**dict.fromkeys(PARTS), **asked.body.settings()}
    shown = await asked.do(PutAiGateway(name=asked.path["endpoint"], settings=settings))
    return endpoint_json(shown, asked.caller)["ai_gateway"]


async def _put_rate_limits(asked: Asked[OldLimitsBody]) -> LimitsJson:
    limits = old_limits(asked.body.rate_limits or ())
    settings: dict[str, Any] = {"rate_limits": limits or None}
    shown = await asked.do(PutAiGateway(name=asked.path["endpoint"], settings=settings))
    return {"rate_limits": [each for each in shown.ai_gateway.get("rate_limits", ()) if "calls" in each]}


async def _patch_tags(asked: Asked[PatchTagsBody]) -> Tags:
    body = asked.body
    add = tags_of(body.add_tags or (), "add_tags")
    shown = await asked.do(
        PatchTags(name=asked.path["endpoint"], add=add, delete=tuple(body.delete_tags or ()))
    )
    return {"tags": tags_json(shown)}


async def _patch_notifications(asked: Asked[NotificationsBody]) -> NotificationsJson:
    shown = await asked.do(PutStored(name=asked.path["endpoint"], fields=asked.body.stored()))
    return {"name": shown.name, "email_notifications": shown.stored.get("email_notifications", {})}


async def _patch_telemetry(asked: Asked[TelemetryBody]) -> EndpointJson:
    shown = await asked.do(PutStored(name=asked.path["endpoint"], fields=asked.body.stored()))
    return endpoint_json(shown, asked.caller)
