"""Grants of an endpoint as the console shows them, and the bodies that change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from serve_app.console.forms import Form
from serve_app.console.views import Json
from serve_app.console.views.problem import Problem

# the API's name of a principal -> what it is
KINDS: Final[Mapping[str, str]] = {
    "group_name": "group",
    "user_name": "user",
    "service_principal_name": "service principal",
}
LIST: Final = "access_control_list"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantView:
    """The permissions of one principal."""

    kind: str  # as the API calls it
    principal: str
    level: str

    @property
    def what(self) -> str:
        return KINDS.get(self.kind, self.kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantFields:
    """The values of the fields in the form for a grant."""

    kind: str = "group_name"
    principal: str = ""
    level: str = "CAN_QUERY"


def grant_views(answer: Json) -> list[GrantView]:
    """The views of the JSON of an endpoint's permissions, in the same order."""
    return [
        GrantView(kind=kind, principal=entry[kind], level=entry["all_permissions"][0]["permission_level"])
        for entry in answer.get(LIST, ())
        for kind in KINDS
        if kind in entry
    ]


def levels_in(answer: Json) -> dict[str, str]:
    """What each level allows, from the JSON of all levels."""
    return {each["permission_level"]: each["description"] for each in answer.get("permission_levels", ())}


def fields_in(form: Form) -> GrantFields:
    """The fields of a form as it was sent."""
    return GrantFields(kind=form.text("kind"), principal=form.text("principal"), level=form.text("level"))


def grant_body(form: Form) -> dict[str, Any]:
    """The grant described by a form, as a list with one element. Raises Problem for an unknown kind."""
    fields = fields_in(form)
    if fields.kind not in KINDS:
        raise Problem("choose a user, a group or a service principal", "kind")
    return {LIST: [{fields.kind: fields.principal, "permission_level": fields.level}]}


def rest_body(former: Json, form: Form) -> dict[str, Any]:
    """All grants in `former` except the one that a form names."""
    gone = (form.text("kind"), form.text("principal"))
    left = [each for each in grant_views(former) if (each.kind, each.principal) != gone]
    return {LIST: [{each.kind: each.principal, "permission_level": each.level} for each in left]}
