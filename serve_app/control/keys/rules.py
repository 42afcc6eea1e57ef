"""The allowed values of the fields of keys and grants, and who may manage keys.

An InvalidField names the field and its range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from serve_app.accounts.keys import ANONYMOUS, NAME
from serve_app.endpoints.permissions import Level
from serve_app.errors import InvalidField, PermissionDenied
from serve_app.limits import (
    MAX_COMMENT_CHARS,
    MAX_ENDPOINT_GRANTS,
    MAX_KEY_LIFETIME_S,
    MAX_KEY_NAMES,
    MAX_PRINCIPAL_CHARS,
)
from serve_app.types import Caller, Scope
from serve_app.types.control import CreateKey, Grant, UpdateKey

KINDS: Final = ("user_name", "group_name", "service_principal_name")
CLEARABLE: Final = ("budget", "soft_budget")  # fields that an update may remove
MAX_BUDGET: Final = 1e12


def check_new(command: CreateKey) -> None:
    """Check the fields of a new key."""
    if NAME.fullmatch(command.name) is None:
        raise InvalidField("name", "must be 1 to 64 characters of A-Z a-z 0-9 . _ -")
    if command.name == ANONYMOUS:
        raise InvalidField("name", f"'{ANONYMOUS}' is the name of callers without a key")
    if command.user:
        check_principal("user", command.user)
    check_names("groups", command.groups)
    check_scopes(command.scopes)
    check_names("endpoints", command.endpoints)
    lifetime_s = command.lifetime_s
    if lifetime_s is not None and not 0 < lifetime_s <= MAX_KEY_LIFETIME_S:
        raise InvalidField("lifetime_seconds", f"must be above 0 and at most {MAX_KEY_LIFETIME_S:.0f}")
    check_budgets(command.budget, command.soft_budget)
    if not (len(command.currency) == 3 and command.currency.isascii() and command.currency.isupper()):
        raise InvalidField("currency", "must be three capital letters, such as USD")
    check_comment(command.comment)


def check_change(command: UpdateKey) -> None:
    """Check each field of a change by itself."""
    if command.groups is not None:
        check_names("groups", command.groups)
    if command.scopes is not None:
        check_scopes(command.scopes)
    if command.endpoints is not None:
        check_names("endpoints", command.endpoints)
    if command.comment is not None:
        check_comment(command.comment)
    for name in command.clear:
        if name not in CLEARABLE:
            raise InvalidField("clear", f"'{_short(name)}' is none of {', '.join(CLEARABLE)}")


def check_principal(field: str, name: str) -> None:
    if not 1 <= len(name) <= MAX_PRINCIPAL_CHARS or not name.isprintable() or name != name.strip():
        raise InvalidField(
            field, f"must be 1 to {MAX_PRINCIPAL_CHARS} visible characters, without blanks around them"
        )


def check_names(field: str, names: Sequence[str]) -> None:
    if len(names) > MAX_KEY_NAMES:
        raise InvalidField(field, f"must hold at most {MAX_KEY_NAMES} names")
    for name in names:
        check_principal(field, name)


def check_scopes(scopes: Sequence[str]) -> None:
    if not scopes:
        raise InvalidField("scopes", f"must hold at least one of {', '.join(Scope)}")
    for scope in scopes:
        if scope not in set(Scope):
            raise InvalidField("scopes", f"'{_short(scope)}' is none of {', '.join(Scope)}")


def check_budgets(budget: float | None, soft_budget: float | None) -> None:
    for name, value in (("budget", budget), ("soft_budget", soft_budget)):
        if value is not None and not (math.isfinite(value) and 0 <= value <= MAX_BUDGET):
            raise InvalidField(name, f"must be 0 to {MAX_BUDGET:.0f}")
    if budget is not None and soft_budget is not None and soft_budget > budget:
        raise InvalidField("soft_budget", "must not exceed budget")


def check_comment(comment: str) -> None:
    if len(comment) > MAX_COMMENT_CHARS or "\0" in comment:
        raise InvalidField("comment", f"must hold at most {MAX_COMMENT_CHARS} characters, and no NUL")


def check_grants(grants: Sequence[Grant]) -> None:
    """Check the grants of one endpoint; no principal may have two of them."""
    if len(grants) > MAX_ENDPOINT_GRANTS:
        raise InvalidField("access_control_list", f"must hold at most {MAX_ENDPOINT_GRANTS} entries")
    seen = set()
    for grant in grants:
        if grant.kind not in KINDS:
            raise InvalidField("access_control_list", f"an entry must have one of {', '.join(KINDS)}")
        check_principal(grant.kind, grant.principal)
        if grant.level not in Level.__members__:
            raise InvalidField("permission_level", f"must be one of {', '.join(Level.__members__)}")
        if (grant.kind, grant.principal) in seen:
            raise InvalidField(grant.kind, "an entry of access_control_list names the same principal")
        seen.add((grant.kind, grant.principal))


def _short(text: str) -> str:
    return text[:64]


def is_administrator(caller: Caller) -> bool:
    """Whether the caller may manage everything."""
    return Scope.MANAGE in caller.scopes and not caller.endpoints


def check_administrator(caller: Caller) -> None:
    """Raises PermissionDenied unless the caller may manage everything."""
    if Scope.MANAGE not in caller.scopes:
        raise PermissionDenied(f"the API key lacks the scope '{Scope.MANAGE}'")
    if caller.endpoints:
        # Otherwise a limited key could make an unlimited one.
        raise PermissionDenied("a key that is limited to endpoints may manage nothing beyond them")
