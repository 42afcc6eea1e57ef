"""The bodies of the routes for API keys."""

from __future__ import annotations

from typing import Annotated, Final

from serve_app import limits
from serve_app.api.management.fields import Matching
from serve_app.api.management.strict_body import StrictBody
from serve_app.api.protocol.field_doc import doc
from serve_app.api.protocol.fields import Flag, Integer, Number, Text, Texts
from serve_app.errors import InvalidField
from serve_app.types import Caller, Scope
from serve_app.types.control import CreateKey, RotateKey, UpdateKey

ALL_APIS: Final = "all-apis"  # Databricks' word for every scope
MAX_BUDGET: Final = 1e12

_Name = Matching(r"[A-Za-z0-9._-]{1,64}", "1 to 64 characters of A-Z a-z 0-9 . _ -")
_Currency = Matching(r"[A-Z]{3}", "three capital letters, such as USD")
_Principal = Text(1, limits.MAX_PRINCIPAL_CHARS)
_Names = Texts(limits.MAX_KEY_NAMES, limits.MAX_PRINCIPAL_CHARS)
_Lifetime = Integer(1, int(limits.MAX_KEY_LIFETIME_S))
_Grace = Integer(0, limits.MAX_KEY_GRACE_S)
_Budget = Number(0, MAX_BUDGET)
_Comment = Text(0, limits.MAX_COMMENT_CHARS)


class KeyFields(StrictBody):
    """The permissions and budgets of a key."""

    groups: Annotated[tuple[str, ...] | None, _Names] = doc(
        "Groups of its user, for permissions and rate limits"
    )
    scopes: Annotated[tuple[str, ...] | None, Texts(len(Scope), 32)] = doc(
        "What it may do", f"of {', '.join(Scope)}"
    )
    endpoints: Annotated[tuple[str, ...] | None, _Names] = doc(
        "The only endpoints it may use; an empty list: all"
    )
    budget: Annotated[float | None, _Budget] = doc(
        "Cost in a calendar month (UTC) above which its requests are refused"
    )
    soft_budget: Annotated[float | None, _Budget] = doc(
        "Cost in a month above which its answers have the header `x-budget-warning`"
    )
    comment: Annotated[str | None, _Comment] = doc("A note of the person who manages keys")


class CreateKeyBody(KeyFields):
    """POST /api/2.0/keys."""

    name: Annotated[str | None, _Name] = doc(
        "Of the key, in logs and in usage; unique among keys in force", required=True
    )
    user: Annotated[str | None, _Principal] = doc("Whose it is; without one the key's name")
    is_service_principal: Flag = doc("Whether that is a service principal, and no user", default=False)
    lifetime_seconds: Annotated[int | None, _Lifetime] = doc("Until it ends; without one it never does")
    currency: Annotated[str | None, _Currency] = doc(
        "Of both budgets; costs in others do not count", "without one USD"
    )

    def command(self) -> CreateKey:
        """Raises InvalidField."""
        if self.name is None:
            raise InvalidField("name", "is required: 1 to 64 characters of A-Z a-z 0-9 . _ -")
        return CreateKey(
            name=self.name,
            user=self.user or "",
            is_service_principal=bool(self.is_service_principal),
            groups=self.groups or (),
            scopes=(Scope.INFERENCE.value,) if self.scopes is None else self.scopes,
            endpoints=self.endpoints or (),
            lifetime_s=self.lifetime_seconds,
            budget=self.budget,
            soft_budget=self.soft_budget,
            currency=self.currency or "USD",
            comment=self.comment or "",
        )


class UpdateKeyBody(KeyFields):
    """PATCH /api/2.0/keys/{id}. Fields that are not named stay unchanged."""

    clear: Annotated[tuple[str, ...] | None, Texts(2, 16)] = doc(
        "What is taken away", "of budget, soft_budget"
    )

    def command(self, id: str) -> UpdateKey:
        return UpdateKey(
            id=id,
            groups=self.groups,
            scopes=self.scopes,
            endpoints=self.endpoints,
            budget=self.budget,
            soft_budget=self.soft_budget,
            comment=self.comment,
            clear=self.clear or (),
        )


class RotateKeyBody(StrictBody):
    """POST /api/2.0/keys/{id}/rotate."""

    grace_seconds: Annotated[int | None, _Grace] = doc(
        "How long the former secret is still taken", "0: it ends at once", default=0
    )

    def command(self, id: str) -> RotateKey:
        return RotateKey(id=id, grace_s=self.grace_seconds or 0)


class CreateTokenBody(StrictBody):
    """POST /api/2.0/token/create: a key for the caller itself, with at most its present permissions."""

    comment: Annotated[str | None, _Comment] = doc("A note of its owner")
    lifetime_seconds: Annotated[int | None, _Lifetime] = doc("Until it ends; without one it never does")
    scopes: Annotated[tuple[str, ...] | None, Texts(len(Scope), 32)] = doc(
        "What it may do", f"of {', '.join(Scope)}; `{ALL_APIS}`: what the caller may"
    )
    autoscope_enabled: Flag = doc("Not served: an error where it is set")

    def command(self, caller: Caller, name: str) -> CreateKey:
        """Raises InvalidField for a scope that the caller's own key lacks, and for `autoscope_enabled`."""
        if self.autoscope_enabled:
            raise InvalidField("autoscope_enabled", "is not served: name the scopes, or leave them out")
        wanted = (ALL_APIS,) if self.scopes is None else self.scopes
        if ALL_APIS in wanted:
            wanted = tuple(caller.scopes)
        for scope in wanted:
            if scope not in caller.scopes:
                held = ", ".join(sorted(caller.scopes))
                raise InvalidField("scopes", f"must be of those that the caller has: {held}, or {ALL_APIS}")
        return CreateKey(
            name=name,
            user=caller.owner,
            is_service_principal=caller.is_service_principal,
            groups=tuple(sorted(caller.groups)),
            scopes=tuple(sorted(wanted)),
            endpoints=tuple(sorted(caller.endpoints)),
            lifetime_s=self.lifetime_seconds,
            comment=self.comment or "",
        )


class DeleteTokenBody(StrictBody):
    """POST /api/2.0/token/delete."""

    token_id: Annotated[str | None, Text(1, 64)] = doc("Of a token of the caller's own", required=True)
