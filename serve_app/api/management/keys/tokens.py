"""Databricks' routes for tokens, which are keys of the caller's own user, and for who is calling."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Final

from starlette.types import Scope as AsgiScope

from serve_app.api.context import context_of
from serve_app.api.dialects.databricks.errors import render_error
from serve_app.api.edge.connection import JsonPage
from serve_app.api.management.answers import Nothing
from serve_app.api.management.command_route import Asked, command_entry
from serve_app.api.management.keys.answers import CreatedTokenJson, MeJson, TokensJson, token_json
from serve_app.api.management.keys.bodies import CreateTokenBody, DeleteTokenBody
from serve_app.api.management.operation import BASE, COMMANDS, OF_ENDPOINT, management
from serve_app.api.management.strict_body import NoBody
from serve_app.api.openapi.operation import READS_BODY, Answer
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.errors import AlreadyExists, Conflict, InvalidField, ModelNotFound, Unauthenticated
from serve_app.types import Scope
from serve_app.types.control import KeyShown, ListKeys, RevokeKey

TOKEN: Final = f"{BASE}/token"
ME: Final = f"{BASE}/preview/scim/v2/Me"
_USER: Final = "urn:ietf:params:scim:schemas:core:2.0:User"

_CREATE: Final = management(
    "Make a key for the caller",
    Answer(what="The token, this once, and what is kept of it.", type=CreatedTokenJson),
    body=CreateTokenBody,
    examples={"for a day": {"comment": "a notebook", "lifetime_seconds": 86400}},
    conditions=(*READS_BODY, *COMMANDS, AlreadyExists, Conflict),
)
_LIST: Final = management(
    "The caller's keys", Answer(what="Those in force.", type=TokensJson), conditions=COMMANDS
)
_DELETE: Final = management(
    "End a key of the caller",
    Answer(what="It has ended on every gateway.", type=Nothing),
    body=DeleteTokenBody,
    examples={"one": {"token_id": "9f2c61d0a7e34b58"}},
    conditions=(*READS_BODY, *OF_ENDPOINT, Conflict),
)
_ME: Final = management(
    "Who is calling", Answer(what="The user of the key, in the shape of SCIM.", type=MeJson), conditions=()
)


def routes(services: Services) -> Iterator[Entry]:
    """All routes of this module."""
    yield command_entry(services, "POST", f"{TOKEN}/create", _create, _CREATE)
    yield command_entry(services, "GET", f"{TOKEN}/list", _list, _LIST)
    yield command_entry(services, "POST", f"{TOKEN}/delete", _delete, _DELETE)
    others = (Scope.METRICS, Scope.MANAGE)  # keys with any of these scopes may ask who they are
    yield Entry("GET", ME, JsonPage(_me), Scope.INFERENCE, operation=_ME, other_scopes=others)


def _me(scope: AsgiScope) -> MeJson:
    """The caller. Needs no control plane. Raises Unauthenticated."""
    context = context_of(scope)
    context.render_error = render_error
    if (caller := context.caller) is None:
        raise Unauthenticated("an API key is required")
    user = caller.owner
    return {
        "schemas": [_USER],
        "id": user,
        "userName": user,
        "displayName": user,
        "active": True,
        "groups": [{"display": group, "value": group} for group in sorted(caller.groups)],
        "entitlements": [{"value": scope} for scope in sorted(caller.scopes)],
    }


async def _create(asked: Asked[CreateTokenBody]) -> CreatedTokenJson:
    created = await asked.do(asked.body.command(asked.caller, f"token-{secrets.token_hex(6)}"))
    return {"token_value": created.secret, "token_info": token_json(created.shown)}


async def _list(asked: Asked[NoBody]) -> TokensJson:
    return {"token_infos": [token_json(key) for key in await _own(asked)]}


async def _delete(asked: Asked[DeleteTokenBody]) -> Nothing:
    token_id = asked.body.token_id
    if token_id is None:
        raise InvalidField("token_id", "is required")
    if all(key.id != token_id for key in await _own(asked)):
        raise ModelNotFound("token_id", "the caller has no such token")
    await asked.do(RevokeKey(id=token_id))
    return {}


async def _own(asked: Asked[Any]) -> list[KeyShown]:
    """The keys of the caller's user."""
    caller = asked.caller
    listed = await asked.do(ListKeys())
    return [
        key
        for key in listed.keys
        if (key.user, key.is_service_principal) == (caller.owner, caller.is_service_principal)
    ]
