"""A key as the console shows it, and the request bodies that create and change a key. Does not depend on
routes or templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from serve_app.console.forms import Form, listed, number, words
from serve_app.console.views import Json
from serve_app.console.views.status import Status, Tone

# scope -> what it allows
SCOPES: Final[Mapping[str, str]] = {
    "inference": "generate, embed, list models, see its own usage",
    "routing": "choose which served entity answers",
    "metrics": "read metrics",
    "manage": "create, change and delete endpoints and keys, see all usage",
}
BUDGETS: Final = ("budget", "soft_budget")
_DAY_S: Final = 86_400
_SOON_MS: Final = 7 * _DAY_S * 1000
_EVERY_ENDPOINT: Final = "every endpoint"
_NEAR: Final = 0.9
_ACTIVE: Final = Status("active", Tone.GOOD)
_FORMER: Final = Status("old secret", Tone.BUSY)
# How long the former secret of a rotated key is still accepted: seconds -> in words.
GRACES: Final = {"0": "at once", "3600": "in an hour", "86400": "in a day", "604800": "in a week"}


# Fields of a key -> their names in the API.
_TIMES: Final = {
    "created": "creation_time",
    "expires": "expiry_time",
    "revoked": "revocation_time",
    "last_used": "last_used_time",
}


class KeyView(msgspec.Struct, frozen=True, kw_only=True, rename=_TIMES):
    """The stored facts about a key. Times are milliseconds since 1970; None: never."""

    id: str
    name: str
    prefix: str = ""
    user: str = ""
    is_service_principal: bool = False
    groups: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    creator: str = ""
    created: int = 0
    expires: int | None = None
    revoked: int | None = None
    budget: float | None = None
    soft_budget: float | None = None
    spent: float | None = None  # in this month; None: unknown
    last_used: int | None = None
    currency: str = ""
    comment: str = ""
    status: Status = _ACTIVE
    is_former: bool = False  # a secret that was rotated, and is still accepted

    @property
    def reach(self) -> str:
        """The endpoints in words."""
        return ", ".join(self.endpoints) or _EVERY_ENDPOINT

    @property
    def spent_share(self) -> float:
        """The share of the budget that is spent, from 0 to 1."""
        return 0.0 if not self.budget else min(1.0, (self.spent or 0.0) / self.budget)

    @property
    def is_near_budget(self) -> bool:
        """Whether all of the soft budget is spent, or nine tenths of the budget."""
        spent = self.spent or 0.0
        warned = self.soft_budget is not None and spent >= self.soft_budget
        return warned or (self.budget is not None and spent >= _NEAR * self.budget)

    @property
    def is_in_force(self) -> bool:
        return self.status.tone is not Tone.IDLE


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFields:
    """The values of the fields in a key's form."""

    texts: Mapping[str, str]
    scopes: frozenset[str]
    endpoints: frozenset[str]
    is_service_principal: bool = False

    def text(self, name: str) -> str:
        return self.texts.get(name, "")


_TEXTS: Final = ("name", "user", "groups", "days", "budget", "soft_budget", "currency", "comment")


def key_view(key: Json, now_ms: int) -> KeyView:
    """The view of one key's JSON."""
    view = msgspec.convert(key, KeyView)
    scopes = tuple(scope for scope in SCOPES if scope in view.scopes)
    return replace(view, scopes=scopes, status=_status(view.expires, view.revoked, now_ms))


def key_views(answer: Json, now_ms: int) -> list[KeyView]:
    """The views of the list's JSON: keys in force, then keys that ended, both sorted by name."""
    found = [key_view(key, now_ms) for key in answer.get("keys", ())]
    newest: dict[str, int] = {}
    for key in found:
        if key.is_in_force:
            newest[key.name] = max(key.created, newest.get(key.name, 0))
    found = [
        replace(key, is_former=True, status=_FORMER)
        if key.is_in_force and key.created < newest[key.name]
        else key
        for key in found
    ]
    return sorted(found, key=lambda key: (not key.is_in_force, key.name, -key.created))


def new_fields() -> KeyFields:
    """The initial fields of a form that makes a key."""
    return KeyFields(texts={"currency": "USD"}, scopes=frozenset({"inference"}), endpoints=frozenset())


def fields_of(key: KeyView) -> KeyFields:
    """The initial fields of a form that changes `key`."""
    budgets = {name: value for name in BUDGETS if (value := getattr(key, name)) is not None}
    return KeyFields(
        texts={
            "groups": listed(key.groups),
            "comment": key.comment,
            "currency": key.currency,
            **{name: f"{Decimal(f'{value:.15g}'):f}" for name, value in budgets.items()},
        },
        scopes=frozenset(key.scopes),
        endpoints=frozenset(key.endpoints),
    )


def fields_in(form: Form) -> KeyFields:
    """The fields of a form as it was sent."""
    return KeyFields(
        texts={name: form.text(name) for name in _TEXTS},
        scopes=frozenset(form.all("scopes")),
        endpoints=frozenset(form.all("endpoints")),
        is_service_principal=bool(form.text("is_service_principal")),
    )


def creation_body(form: Form) -> dict[str, Any]:
    """The key described by a form."""
    body: dict[str, Any] = {"name": form.text("name"), **_shared(form)}
    body |= {name: text for name in ("user", "currency") if (text := form.text(name))}
    if bool(form.text("is_service_principal")):
        body["is_service_principal"] = True
    days = number(form.text("days"))
    if days is not None:
        body["lifetime_seconds"] = round(days * _DAY_S) if isinstance(days, int | float) else days
    return body


def change_body(form: Form) -> dict[str, Any]:
    """The change of an existing key that a form describes. A budget left empty is removed."""
    body = _shared(form)
    cleared = [name for name in BUDGETS if name not in body]
    return {**body, "clear": cleared} if cleared else body


def rotation_body(form: Form) -> dict[str, Any]:
    """How long the former secret is still accepted, from a form."""
    return {"grace_seconds": number(form.text("grace"))}


def _shared(form: Form) -> dict[str, Any]:
    budgets = {name: number(form.text(name)) for name in BUDGETS}
    return {
        "scopes": form.all("scopes"),
        "groups": words(form.text("groups")),
        "endpoints": form.all("endpoints"),
        "comment": form.text("comment"),
        **{name: value for name, value in budgets.items() if value is not None},
    }


def _status(expires: int | None, revoked: int | None, now_ms: int) -> Status:
    if revoked is not None:
        return Status("revoked", Tone.IDLE)
    if expires is None or expires - now_ms > _SOON_MS:
        return _ACTIVE
    return Status("ends soon", Tone.BUSY) if expires > now_ms else Status("expired", Tone.IDLE)
