"""This server's own routes for API keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from serve_app.api.management.answers import Nothing
from serve_app.api.management.command_route import Asked, command_entry
from serve_app.api.management.keys import answers, tokens
from serve_app.api.management.keys.bodies import CreateKeyBody, RotateKeyBody, UpdateKeyBody
from serve_app.api.management.operation import BASE, COMMANDS, OF_ENDPOINT, management
from serve_app.api.management.strict_body import NoBody
from serve_app.api.openapi.operation import READS_BODY, Answer, Parameter
from serve_app.api.route import Entry
from serve_app.api.services import Services
from serve_app.errors import AlreadyExists, Conflict, InvalidField
from serve_app.types.control import CreatedKey, ListKeys, RevokeKey

KEYS: Final = f"{BASE}/keys"
KEY: Final = f"{KEYS}/{{id}}"

_CREATES: Final = (*READS_BODY, *COMMANDS, AlreadyExists, Conflict)
_CHANGES: Final = (*READS_BODY, *OF_ENDPOINT, Conflict)
_CREATE: Final = management(
    "Make an API key",
    Answer(what="The key, this once, and what is kept of it.", type=answers.CreatedKeyJson),
    what="The first key of a server without any must have the scope `manage`.",
    body=CreateKeyBody,
    examples={"for a team": {"name": "search-team", "groups": ["search"], "lifetime_seconds": 2592000}},
    conditions=_CREATES,
)
_LIST: Final = replace(
    management("All API keys", Answer(what="The keys in force.", type=answers.KeysJson), conditions=COMMANDS),
    parameters=(Parameter(name="all", place="query", type=bool, what="Also those that ended."),),
)
_UPDATE: Final = management(
    "Change an API key",
    Answer(what="The key as it is now on every gateway.", type=answers.KeyJson),
    body=UpdateKeyBody,
    examples={"a larger budget": {"budget": 200}},
    conditions=_CHANGES,
)
_ROTATE: Final = management(
    "Give an API key a new secret",
    Answer(what="The key, this once, and what is kept of it.", type=answers.CreatedKeyJson),
    what="Its id, its name and all that it may do stay. The former secret ends at once, or after a time of "
    "grace in which it is a key of its own in the list.",
    body=RotateKeyBody,
    examples={"with a day to change over": {"grace_seconds": 86400}},
    conditions=_CHANGES,
)
_REVOKE: Final = management(
    "End an API key",
    Answer(what="It has ended on every gateway; answers under way are finished.", type=Nothing),
    conditions=(*OF_ENDPOINT, Conflict),
)


def routes(services: Services) -> Iterator[Entry]:
    """This server's own routes, then Databricks' routes."""
    entry = partial(command_entry, services)
    yield entry("POST", KEYS, _create, _CREATE)
    yield entry("GET", KEYS, _list, _LIST)
    yield entry("PATCH", KEY, _update, _UPDATE)
    yield entry("POST", f"{KEY}/rotate", _rotate, _ROTATE)
    yield entry("DELETE", KEY, _revoke, _REVOKE)
    yield from tokens.routes(services)


async def _create(asked: Asked[CreateKeyBody]) -> answers.CreatedKeyJson:
    command = asked.body.command()
    if asked.services.accounts.is_declared(command.name):
        # Usage, budgets and logs tell keys apart by their names.
        raise AlreadyExists(f"name: a key of the key file, or of the environment, is called {command.name}")
    return _created(await asked.do(command))


def _created(created: CreatedKey) -> answers.CreatedKeyJson:
    return {"key": created.secret, "key_info": answers.key_json(created.shown)}


async def _list(asked: Asked[NoBody]) -> answers.KeysJson:
    everything = asked.query.get("all", "false").lower()
    if everything not in ("true", "false"):
        raise InvalidField("all", "must be true or false")
    listed = await asked.do(ListKeys(everything=everything == "true"))
    declared = sorted(asked.services.accounts.declared(), key=lambda caller: caller.key_id)
    shown: answers.KeysJson = {
        "keys": [answers.key_json(key) for key in listed.keys],
        "declared_keys": [answers.declared_json(caller) for caller in declared],
    }
    if listed.is_kept:
        shown["notice"] = answers.AWAY
    return shown


async def _update(asked: Asked[UpdateKeyBody]) -> answers.KeyJson:
    return answers.key_json(await asked.do(asked.body.command(_changeable(asked))))


async def _rotate(asked: Asked[RotateKeyBody]) -> answers.CreatedKeyJson:
    return _created(await asked.do(asked.body.command(_changeable(asked))))


async def _revoke(asked: Asked[NoBody]) -> Nothing:
    await asked.do(RevokeKey(id=_changeable(asked)))
    return {}


def _changeable(asked: Asked[Any]) -> str:
    """The id or name of the key that the path names. Raises Conflict for a key of the operator."""
    id = asked.path["id"]
    if any(caller.key_id == id for caller in asked.services.accounts.declared()):
        raise Conflict(
            f"the key {id} is of the key file or the environment, which alone change it: take its line out"
        )
    return id
