"""The answers of the routes for API keys: their shapes, and how they are made. Times are in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NotRequired

from typing_extensions import TypedDict

from serve_app.types import Caller
from serve_app.types.control import KeyShown

AWAY: Final = (
    "the database does not answer: these are the keys in force as they were before, without last_used_time "
    "and spent; keys that ended are not listed"
)
NEVER: Final = -1  # Databricks' word for a token that does not end


class KeyJson(TypedDict):
    """A key without its secret. Only lists have `last_used_time` and the amount `spent` this month (UTC)."""

    id: str
    name: str
    prefix: str
    user: str
    is_service_principal: bool
    groups: Sequence[str]
    scopes: Sequence[str]
    endpoints: Sequence[str]
    creator: str
    creation_time: int
    expiry_time: NotRequired[int]
    revocation_time: NotRequired[int]
    last_used_time: NotRequired[int]
    budget: NotRequired[float]
    soft_budget: NotRequired[float]
    spent: NotRequired[float]
    currency: str
    comment: str


class CreatedKeyJson(TypedDict):
    """A new key. `key` is shown once."""

    key: str
    key_info: KeyJson


class DeclaredKeyJson(TypedDict):
    """A key from the key file or the environment, which can be changed only there."""

    name: str
    scopes: Sequence[str]


class KeysJson(TypedDict):
    """Keys that were made at run time, oldest first, then the operator's keys, sorted by name.

    `notice` says what is missing while the database is unavailable.
    """

    keys: list[KeyJson]
    declared_keys: list[DeclaredKeyJson]
    notice: NotRequired[str]


class TokenJson(TypedDict):
    """A key in the form of a Databricks token."""

    token_id: str
    comment: str
    creation_time: int
    expiry_time: int
    scopes: Sequence[str]


class CreatedTokenJson(TypedDict):
    """A new token. `token_value` is shown once."""

    token_value: str
    token_info: TokenJson


class TokensJson(TypedDict):
    """The caller's tokens."""

    token_infos: list[TokenJson]


class GroupJson(TypedDict):
    """A group of a user."""

    display: str
    value: str


class ScopeJson(TypedDict):
    """A scope of a key."""

    value: str


class MeJson(TypedDict):
    """Who is calling, in the shape of SCIM."""

    schemas: list[str]
    id: str
    userName: str
    displayName: str
    active: bool
    groups: list[GroupJson]
    entitlements: list[ScopeJson]


def key_json(key: KeyShown) -> KeyJson:
    shown: KeyJson = {
        "id": key.id,
        "name": key.name,
        "prefix": key.prefix,
        "user": key.user,
        "is_service_principal": key.is_service_principal,
        "groups": key.groups,
        "scopes": key.scopes,
        "endpoints": key.endpoints,
        "creator": key.creator,
        "creation_time": _ms(key.created),
        "currency": key.currency,
        "comment": key.comment,
    }
    if key.expires is not None:
        shown["expiry_time"] = _ms(key.expires)
    if key.revoked is not None:
        shown["revocation_time"] = _ms(key.revoked)
    if key.last_used is not None:
        shown["last_used_time"] = _ms(key.last_used)
    if key.budget is not None:
        shown["budget"] = key.budget
    if key.soft_budget is not None:
        shown["soft_budget"] = key.soft_budget
    if key.spent is not None:
        shown["spent"] = key.spent
    return shown


def declared_json(caller: Caller) -> DeclaredKeyJson:
    return {"name": caller.key_id, "scopes": sorted(caller.scopes)}


def token_json(key: KeyShown) -> TokenJson:
    return {
        "token_id": key.id,
        "comment": key.comment,
        "creation_time": _ms(key.created),
        "expiry_time": NEVER if key.expires is None else _ms(key.expires),
        "scopes": key.scopes,
    }


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
