"""Who may manage keys, and whatever else concerns more than one endpoint."""

from __future__ import annotations

from serve_app.errors import PermissionDenied
from serve_app.types import Caller, Scope


def is_administrator(caller: Caller) -> bool:
    """Whether the caller may manage everything."""
    return Scope.MANAGE in caller.scopes and not caller.endpoints


def check_administrator(caller: Caller) -> None:
    """Raises PermissionDenied unless the caller may manage everything."""
    if Scope.MANAGE not in caller.scopes:
        raise PermissionDenied(f"the API key lacks the scope '{Scope.MANAGE}'")
    if caller.endpoints:
        # Such a key could otherwise make itself one without the limit.
        raise PermissionDenied("a key that is limited to endpoints may manage nothing beyond them")
