"""The grants of one endpoint, by the endpoint's id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Final, cast

from pydantic import Field

from serve_app.api.management.answers import GrantJson, LevelName, LevelsJson, PermissionsJson
from serve_app.api.management.command_route import Asked, command_entry
from serve_app.api.management.fields import ListOf
from serve_app.api.management.operation import CHANGES, OF_ENDPOINT, PERMISSIONS, management
from serve_app.api.management.strict_body import NoBody, StrictBody
from serve_app.api.openapi.operation import Answer
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import OneOf, Text
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.errors import InvalidField
from serve_app.limits import MAX_GRANTS
from serve_app.types.control import GetPermissions, Grant, Permissions, PutPermissions

LEVELS: Final[Mapping[LevelName, str]] = {
    "CAN_VIEW": "Can see the endpoint",
    "CAN_QUERY": "Can see the endpoint and query it",
    "CAN_MANAGE": "Can see the endpoint, query it, change it and decide who may",
}
_KINDS: Final = ("user_name", "group_name", "service_principal_name")
_NAME_CHARS: Final = 256


class GrantBody(StrictBody):
    """What one user, group or service principal may do."""

    user_name: Annotated[str | None, Text(1, _NAME_CHARS)] = None
    group_name: Annotated[str | None, Text(1, _NAME_CHARS)] = None
    service_principal_name: Annotated[str | None, Text(1, _NAME_CHARS)] = None
    permission_level: Annotated[str | None, OneOf(LEVELS)] = doc(required=True)


class PermissionsBody(StrictBody):
    """PUT and PATCH /api/2.0/permissions/serving-endpoints/{id}."""

    access_control_list: Annotated[
        Annotated[list[GrantBody], Field(max_length=MAX_GRANTS)] | None, ListOf(0, MAX_GRANTS)
    ] = None

    def grants(self) -> tuple[Grant, ...]:
        """Raises InvalidField."""
        return tuple(
            _grant(f"access_control_list.{number}", each)
            for number, each in enumerate(self.access_control_list or ())
        )


_ANSWER: Final = Answer(what="All grants of the endpoint.", type=PermissionsJson)
_EXAMPLE: Final = {
    "a group": {"access_control_list": [{"group_name": "sea", "permission_level": "CAN_QUERY"}]}
}
_GET: Final = management(
    "Who may do what with an endpoint", _ANSWER, what="Without grants every key with the scope may."
)
_PUT: Final = management(
    "Replace all grants of an endpoint", _ANSWER, body=PermissionsBody, examples=_EXAMPLE, conditions=CHANGES
)
_PATCH: Final = management(
    "Set the grants that are named", _ANSWER, body=PermissionsBody, examples=_EXAMPLE, conditions=CHANGES
)
_LEVELS: Final = management(
    "What grants there are", Answer(what="The levels.", type=LevelsJson), conditions=OF_ENDPOINT
)


def routes(services: Services) -> Iterator[Entry]:
    """All routes of this module."""
    yield command_entry(services, "GET", PERMISSIONS, _get, _GET)
    yield command_entry(services, "PUT", PERMISSIONS, partial(_set, replaces_all=True), _PUT)
    yield command_entry(services, "PATCH", PERMISSIONS, partial(_set, replaces_all=False), _PATCH)
    yield command_entry(services, "GET", f"{PERMISSIONS}/permissionLevels", _levels, _LEVELS)


async def _get(asked: Asked[NoBody]) -> PermissionsJson:
    return _json(await asked.do(GetPermissions(endpoint_id=asked.path["id"])))


async def _set(asked: Asked[PermissionsBody], *, replaces_all: bool) -> PermissionsJson:
    grants = asked.body.grants()
    command = PutPermissions(endpoint_id=asked.path["id"], grants=grants, replaces_all=replaces_all)
    return _json(await asked.do(command))


async def _levels(asked: Asked[NoBody]) -> LevelsJson:
    await asked.do(GetPermissions(endpoint_id=asked.path["id"]))  # the endpoint must be there
    return {
        "permission_levels": [
            {"permission_level": level, "description": what} for level, what in LEVELS.items()
        ]
    }


def _grant(where: str, body: GrantBody) -> Grant:
    named = [(kind, name) for kind in _KINDS if (name := getattr(body, kind)) is not None]
    if len(named) != 1:
        raise InvalidField(where, f"must have one of {', '.join(_KINDS)}")
    if body.permission_level is None:
        raise InvalidField(f"{where}.permission_level", f"is required: one of {', '.join(LEVELS)}")
    (kind, principal) = named[0]
    return Grant(principal=principal, kind=kind, level=body.permission_level)


def _json(permissions: Permissions) -> PermissionsJson:
    return {
        "object_id": f"/serving-endpoints/{permissions.endpoint_id}",
        "object_type": "serving-endpoint",
        "access_control_list": [_grant_json(grant) for grant in permissions.grants],
    }


def _grant_json(grant: Grant) -> GrantJson:
    levels = [{"permission_level": grant.level, "inherited": False}]
    shown = {grant.kind: grant.principal, "display_name": grant.principal, "all_permissions": levels}
    return cast(GrantJson, shown)
