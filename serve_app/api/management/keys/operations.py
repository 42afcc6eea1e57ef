"""The routes of keys as the OpenAPI document describes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from serve_app.api.management.answers import Nothing
from serve_app.api.management.keys.answers import (
    CreatedKeyJson,
    CreatedTokenJson,
    KeyJson,
    KeysJson,
    MeJson,
    TokensJson,
)
from serve_app.api.management.keys.bodies import (
    CreateKeyBody,
    CreateTokenBody,
    DeleteTokenBody,
    RotateKeyBody,
    UpdateKeyBody,
)
from serve_app.api.management.operations import COMMANDS, OF_ENDPOINT, management
from serve_app.api.openapi.operation import READS_BODY, Answer, Parameter
from serve_app.errors import AlreadyExists, Conflict

_CREATES: Final = (*READS_BODY, *COMMANDS, AlreadyExists, Conflict)
_CHANGES: Final = (*READS_BODY, *OF_ENDPOINT, Conflict)

CREATE: Final = management(
    "Make an API key",
    Answer(what="The key, this once, and what is kept of it.", type=CreatedKeyJson),
    what="The first key of a server without any must have the scope `manage`.",
    body=CreateKeyBody,
    examples={"for a team": {"name": "search-team", "groups": ["search"], "lifetime_seconds": 2592000}},
    conditions=_CREATES,
)
LIST: Final = replace(
    management("All API keys", Answer(what="The keys in force.", type=KeysJson), conditions=COMMANDS),
    parameters=(Parameter(name="all", place="query", type=bool, what="Also those that ended."),),
)
UPDATE: Final = management(
    "Change an API key",
    Answer(what="The key as it is now on every gateway.", type=KeyJson),
    body=UpdateKeyBody,
    examples={"a larger budget": {"budget": 200}},
    conditions=_CHANGES,
)
ROTATE: Final = management(
    "Give an API key a new secret",
    Answer(what="The key, this once, and what is kept of it.", type=CreatedKeyJson),
    what="Its id, its name and all that it may do stay. The former secret ends at once, or after a time of "
    "grace in which it is a key of its own in the list.",
    body=RotateKeyBody,
    examples={"with a day to change over": {"grace_seconds": 86400}},
    conditions=_CHANGES,
)
REVOKE: Final = management(
    "End an API key",
    Answer(what="It has ended on every gateway; answers under way are finished.", type=Nothing),
    conditions=(*OF_ENDPOINT, Conflict),
)
CREATE_TOKEN: Final = management(
    "Make a key for the caller",
    Answer(what="The token, this once, and what is kept of it.", type=CreatedTokenJson),
    body=CreateTokenBody,
    examples={"for a day": {"comment": "a notebook", "lifetime_seconds": 86400}},
    conditions=_CREATES,
)
LIST_TOKENS: Final = management(
    "The caller's keys", Answer(what="Those in force.", type=TokensJson), conditions=COMMANDS
)
DELETE_TOKEN: Final = management(
    "End a key of the caller",
    Answer(what="It has ended on every gateway.", type=Nothing),
    body=DeleteTokenBody,
    examples={"one": {"token_id": "9f2c61d0a7e34b58"}},
    conditions=_CHANGES,
)
ME: Final = management(
    "Who is calling", Answer(what="The user of the key, in the shape of SCIM.", type=MeJson), conditions=()
)
