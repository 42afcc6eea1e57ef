"""What a caller may do with an endpoint: its key's own limit, and the grants of the endpoint.

The words are Databricks'. CAN_MANAGE includes CAN_QUERY, which includes CAN_VIEW. An endpoint without
grants is open to every key. A key with the scope `manage` is an administrator's: it may do everything with
the endpoints that it may use. Grants never widen a key's own list of endpoints. Considers no other scope, nor
where grants come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from serve_app.types import Caller, Scope
from serve_app.types.control.endpoints import Grant

EVERYBODY: Final = "users"  # the group that every key is a member of


class Level(IntEnum):
    """A permission. A higher level includes the lower ones."""

    CAN_VIEW = 1
    CAN_QUERY = 2
    CAN_MANAGE = 3


def level_of(caller: Caller, endpoint: str, grants: Sequence[Grant]) -> Level | None:
    """What `caller` may do with `endpoint`, given the endpoint's grants; None means nothing at all."""
    if caller.endpoints and endpoint not in caller.endpoints:
        return None
    if Scope.MANAGE in caller.scopes:
        return Level.CAN_MANAGE
    if not grants:
        return Level.CAN_QUERY
    return max((Level[grant.level] for grant in grants if _is_for(grant, caller)), default=None)


def _is_for(grant: Grant, caller: Caller) -> bool:
    if grant.kind == "group_name":
        return grant.principal == EVERYBODY or grant.principal in caller.groups
    kind = "service_principal_name" if caller.is_service_principal else "user_name"
    return grant.kind == kind and grant.principal == caller.owner
