"""Answers of the routes of keys: their shapes, and how they are made. Times are in milliseconds."""

from __future__ import annotations

from typing import Any, Final, NotRequired

from typing_extensions import TypedDict

from serve_app.types import Caller
from serve_app.types.control import KeyShown

AWAY: Final = (
    "the database does not answer: these are the keys in force as they were before, without last_used_time "
    "and spent; keys that ended are not listed"
)
NEVER: Final = -1  # Databricks' word for a token that does not end


class KeyJson(TypedDict):
    """A key without its secret. Only lists have `last_used_time`, and what it `spent` in this month (UTC)."""

    id: str
    name: str
    prefix: str
    user: str
    is_service_principal: bool
    groups: list[str]
    scopes: list[str]
    endpoints: list[str]
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
    """A new key. `key` is told once."""

    key: str
    key_info: KeyJson


class DeclaredKeyJson(TypedDict):
    """A key of the key file or the environment, which alone change it."""

    name: str
    scopes: list[str]


class KeysJson(TypedDict):
    """Keys that were made at run time, the oldest first, and those of the operator by name.

    `notice` says what is missing while the database is away.
    """

    keys: list[KeyJson]
    declared_keys: list[DeclaredKeyJson]
    notice: NotRequired[str]


class TokenJson(TypedDict):
    """A key in Databricks' words."""

    token_id: str
    comment: str
    creation_time: int
    expiry_time: int
    scopes: list[str]


class CreatedTokenJson(TypedDict):
    """A new token. `token_value` is told once."""

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


def key_json(key: KeyShown) -> dict[str, Any]:
    shown: dict[str, Any] = {
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
    times = {
        "expiry_time": key.expires,
        "revocation_time": key.revoked,
        "last_used_time": key.last_used,
    }
    amounts = {"budget": key.budget, "soft_budget": key.soft_budget, "spent": key.spent}
    shown |= {name: _ms(value) for name, value in times.items() if value is not None}
    return shown | {name: value for name, value in amounts.items() if value is not None}


def declared_json(caller: Caller) -> dict[str, Any]:
    return {"name": caller.key_id, "scopes": sorted(caller.scopes)}


def token_json(key: KeyShown) -> dict[str, Any]:
    return {
        "token_id": key.id,
        "comment": key.comment,
        "creation_time": _ms(key.created),
        "expiry_time": NEVER if key.expires is None else _ms(key.expires),
        "scopes": key.scopes,
    }


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
