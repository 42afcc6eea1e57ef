"""API keys that are made at run time."""

from __future__ import annotations

from dataclasses import dataclass, field

from serve_app.types.control.command import Change, Command, Done


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyShown:
    """A key without its secret. Only lists have `last_used` and `spent`, which are in the ledger."""

    id: str
    name: str  # unique among keys in force; in logs and usage
    prefix: str  # the first characters of the key, by which its owner recognises it
    user: str  # its owner: a user or a service principal
    is_service_principal: bool
    groups: tuple[str, ...]
    scopes: tuple[str, ...]  # see types.Scope
    endpoints: tuple[str, ...]  # that it may use; empty: all
    creator: str
    created: float  # Unix seconds
    expires: float | None = None
    revoked: float | None = None
    budget: float | None = None  # of a calendar month (UTC), in `currency`: above it requests are refused
    soft_budget: float | None = None  # above it answers have a warning
    currency: str = "USD"
    comment: str = ""
    last_used: float | None = None  # when its newest request began; None: the ledger has none
    spent: float | None = None  # in this month, in `currency`


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedKey:
    """A new key. Its secret is returned once and stored nowhere."""

    secret: str = field(repr=False)
    shown: KeyShown


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyList:
    """Keys. If `is_kept`, the database is unavailable, and these are the keys in force as last read, without
    `last_used` and `spent`."""

    keys: tuple[KeyShown, ...]
    is_kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateKey(Change[CreatedKey]):
    name: str
    user: str = ""  # none: the name
    is_service_principal: bool = False
    groups: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ("inference",)
    endpoints: tuple[str, ...] = ()
    lifetime_s: float | None = None  # None: unlimited
    budget: float | None = None
    soft_budget: float | None = None
    currency: str = "USD"
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateKey(Change[KeyShown]):
    """Change the fields that are not None. A change to a key's permissions takes effect on every gateway."""

    id: str
    groups: tuple[str, ...] | None = None
    scopes: tuple[str, ...] | None = None
    endpoints: tuple[str, ...] | None = None
    budget: float | None = None
    soft_budget: float | None = None
    comment: str | None = None
    clear: tuple[str, ...] = ()  # fields to remove: "budget", "soft_budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateKey(Change[CreatedKey]):
    """Give a key, by its id or its name, a new secret. The former secret expires after `grace_s`."""

    id: str
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListKeys(Command[KeyList]):
    """List all keys in force; with `everything` also the expired and revoked keys."""

    everything: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeKey(Change[Done]):
    """Revoke a key, by its id or its name, with its former secrets, on every gateway."""

    id: str
