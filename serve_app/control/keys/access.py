"""Decides who may send which command, by the caller's scopes, its key's endpoints, and the endpoint's grants.

Denies by default: only administrators may send a command that has no rule here. To a caller who may not see
an endpoint, the endpoint seems not to exist.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, cast

from serve_app.control.database.database import Database
from serve_app.control.keys.permissions import Grants
from serve_app.control.keys.rules import check_administrator, is_administrator
from serve_app.endpoints.permissions import Level, level_of
from serve_app.errors import ModelNotFound, PermissionDenied
from serve_app.types import Caller, Scope, control

# The level that a command about one endpoint needs, and the field with the endpoint's name.
OF_ENDPOINT: Final = MappingProxyType[type[control.Command[Any]], tuple[Level, str]](
    {
        control.CreateEndpoint: (Level.CAN_MANAGE, "name"),
        control.UpdateConfig: (Level.CAN_MANAGE, "name"),
        control.DeleteEndpoint: (Level.CAN_MANAGE, "name"),
        control.PutAiGateway: (Level.CAN_MANAGE, "name"),
        control.PatchTags: (Level.CAN_MANAGE, "name"),
        control.ReadLogs: (Level.CAN_MANAGE, "name"),  # lines may be about any caller's requests
        control.GetEndpoint: (Level.CAN_VIEW, "name"),
        control.StartRollout: (Level.CAN_MANAGE, "endpoint"),
        control.StopRollout: (Level.CAN_MANAGE, "endpoint"),
        control.GetRollout: (Level.CAN_VIEW, "endpoint"),
        control.CompareEntities: (Level.CAN_VIEW, "endpoint"),
    }
)
# Commands whose own handlers check the caller, with data that only they have.
JUDGED_BELOW: Final = frozenset[type[control.Command[Any]]](
    {
        control.GetPermissions,
        control.PutPermissions,
        control.GiveFeedback,
        control.KeepResponse,
        control.RecallResponses,
        control.ForgetResponse,
    }
)
# Commands that gateways send for themselves. No client can send one.
OF_GATEWAYS: Final = frozenset[type[control.Command[Any]]](
    {control.WatchSnapshot, control.AwaitChanges, control.ShipUsage, control.TellLive, control.ReadLive}
)


class Access:
    """The check that every command passes before its handler."""

    def __init__(self, database: Database, grants: Grants) -> None:
        self._database = database
        self._grants = grants

    async def check(self, command: control.Command[Any], caller: Caller) -> None:
        """Raises PermissionDenied or ModelNotFound."""
        if is_administrator(caller) or type(command) in JUDGED_BELOW | OF_GATEWAYS:
            return
        if isinstance(command, control.ListEndpoints):  # see `seen`
            return
        if isinstance(command, control.ReportUsage):
            if command.key != caller.key_id:
                raise PermissionDenied("this API key may see its own usage alone")
            return
        rule = OF_ENDPOINT.get(type(command))
        if rule is None:
            check_administrator(caller)
            return
        needed, field = rule
        name = getattr(command, field)
        level = level_of(caller, name, (await self._by_endpoint(caller)).get(name, ()))
        if level is None and isinstance(command, control.CreateEndpoint):
            raise PermissionDenied(f"the API key is limited to endpoints, and {name!r} is none of them")
        if level is None:
            raise ModelNotFound("name", f"there is no endpoint {name!r} that was made at run time")
        if level < needed:
            raise PermissionDenied(f"this needs {needed.name} on the endpoint, or the scope '{Scope.MANAGE}'")

    async def seen(self, reply: control.ReplyT, caller: Caller) -> control.ReplyT:
        """Remove endpoints that the caller may not see from the reply."""
        if not isinstance(reply, control.EndpointList) or is_administrator(caller):
            return reply
        grants = await self._by_endpoint(caller)
        left = tuple(
            each
            for each in reply.endpoints
            if level_of(caller, each.name, grants.get(each.name, ())) is not None
        )
        return cast("control.ReplyT", replace(reply, endpoints=left))

    async def _by_endpoint(self, caller: Caller) -> dict[str, tuple[control.Grant, ...]]:
        if Scope.MANAGE in caller.scopes:
            return {}  # the key's own list of endpoints decides
        return await self._grants.known()
