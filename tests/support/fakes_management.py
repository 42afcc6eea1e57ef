"""A control plane of one dictionary: endpoints are up as soon as somebody looks at them twice."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, cast

from serve_app.errors import AlreadyExists, Conflict, ModelNotFound, ServeError, UnsupportedField
from serve_app.types import Caller
from serve_app.types.control import (
    AwaitChanges,
    Command,
    ConfigShown,
    ConfigWanted,
    CreateEndpoint,
    DeleteEndpoint,
    Done,
    EndpointList,
    EndpointShown,
    EntityShown,
    EntityState,
    Followed,
    GetEndpoint,
    GetPermissions,
    GetRollout,
    Grant,
    ListEndpoints,
    Logs,
    PatchTags,
    Permissions,
    PutAiGateway,
    PutPermissions,
    PutStored,
    ReadLogs,
    ReplyT,
    RolloutShown,
    UpdateConfig,
    UpdateState,
)


class FakeManagement:
    """An `api.backend.Management`. Each look at a configuration that comes up takes one of its `looks`."""

    def __init__(self, looks: int = 1, refuse: ServeError | None = None) -> None:
        self.commands: list[Command[Any]] = []
        self.endpoints: dict[str, EndpointShown] = {}
        self.grants: dict[str, tuple[Grant, ...]] = {}
        self.problem: str | None = None
        self.refuse = refuse  # what every command is answered with
        self.behind = 0  # gateways that do not serve by a change yet
        self.failure = ""  # what the next configuration fails with
        self._looks = looks
        self._left: dict[str, int] = {}
        self._made = 0

    async def do(self, command: Command[ReplyT], caller: Caller) -> ReplyT:
        if isinstance(command, AwaitChanges):
            return cast("ReplyT", Followed(behind=self.behind))
        self.commands.append(command)
        if self.refuse is not None:
            raise self.refuse
        handlers: dict[type[Command[Any]], Callable[[Any, Caller], Awaitable[Any]]] = {
            CreateEndpoint: self._create,
            UpdateConfig: self._update,
            GetEndpoint: self._get,
            GetRollout: self._get_rollout,
            ListEndpoints: self._list,
            DeleteEndpoint: self._delete,
            PutAiGateway: self._put_ai_gateway,
            PatchTags: self._patch_tags,
            PutStored: self._put_stored,
            ReadLogs: self._logs,
            GetPermissions: self._permissions,
            PutPermissions: self._put_permissions,
        }
        handler = handlers.get(type(command))
        if handler is None:
            raise UnsupportedField(None, "the control plane does not know this command")
        return cast("ReplyT", await handler(command, caller))

    def find(self, name: str) -> EndpointShown:
        if name not in self.endpoints:
            raise ModelNotFound("name", f"there is no endpoint {name}")
        return self.endpoints[name]

    async def _create(self, command: CreateEndpoint, caller: Caller) -> EndpointShown:
        if command.name in self.endpoints:
            raise AlreadyExists(f"an endpoint {command.name} exists")
        self._made += 1
        now = time.time()
        shown = EndpointShown(
            name=command.name,
            id=f"e-{self._made:02}",
            kind="provisioned_throughput" if command.is_provisioned else "pay_per_token",
            task=command.task or "llm/v1/chat",
            creator=caller.user or caller.key_id,
            created=now,
            updated=now,
            is_ready=False,
            update=UpdateState.IN_PROGRESS,
            description=command.description,
            tags=command.tags,
            ai_gateway=command.ai_gateway,
            stored=command.stored,
        )
        return self._begin(shown, command.config, caller)

    async def _update(self, command: UpdateConfig, caller: Caller) -> EndpointShown:
        shown = self.find(command.name)
        if shown.declared:
            raise Conflict("the deploy file declares this endpoint: change it there")
        if shown.update is UpdateState.IN_PROGRESS:
            raise Conflict("the endpoint is being updated; wait until it is not")
        return self._begin(shown, command.config, caller)

    def _begin(self, shown: EndpointShown, config: ConfigWanted, caller: Caller) -> EndpointShown:
        version = (shown.config.version if shown.config else 0) + 1
        entities = tuple(
            EntityShown(
                wanted=each,
                state=EntityState.CREATING,
                creator=caller.user or caller.key_id,
                created=time.time(),
            )
            for each in config.entities
        )
        pending = ConfigShown(
            version=version, entities=entities, traffic=config.traffic, stored=config.stored
        )
        self._left[shown.name], now = self._looks, time.time()
        found = replace(
            shown, pending=pending, update=UpdateState.IN_PROGRESS, updated=now, pending_since=now
        )
        self.endpoints[shown.name] = found
        return found

    async def _get(self, command: GetEndpoint, caller: Caller) -> EndpointShown:
        shown = self.find(command.name)
        pending = shown.pending
        if pending is None or shown.update is not UpdateState.IN_PROGRESS:
            return shown
        self._left[shown.name] -= 1
        if self._left[shown.name] > 0:
            return shown
        if self.failure:
            failed = tuple(
                replace(each, state=EntityState.FAILED, message=self.failure) for each in pending.entities
            )
            shown = replace(
                shown,
                pending=replace(pending, entities=failed),
                update=UpdateState.UPDATE_FAILED,
                message=self.failure,
            )
        else:
            up = tuple(replace(each, state=EntityState.READY) for each in pending.entities)
            shown = replace(
                shown,
                config=replace(pending, entities=up),
                pending=None,
                update=UpdateState.NOT_UPDATING,
                is_ready=True,
            )
        self.endpoints[shown.name] = shown
        return shown

    async def _get_rollout(self, command: GetRollout, caller: Caller) -> RolloutShown:
        raise ModelNotFound("name", f"the endpoint {command.endpoint!r} has had no rollout")

    async def _list(self, command: ListEndpoints, caller: Caller) -> EndpointList:
        return EndpointList(endpoints=tuple(self.endpoints[name] for name in sorted(self.endpoints)))

    async def _delete(self, command: DeleteEndpoint, caller: Caller) -> Done:
        self.find(command.name)
        del self.endpoints[command.name]
        return Done()

    async def _put_ai_gateway(self, command: PutAiGateway, caller: Caller) -> EndpointShown:
        shown = self.find(command.name)
        settings = {**shown.ai_gateway, **command.settings}
        kept = {name: value for name, value in settings.items() if value is not None}
        self.endpoints[command.name] = replace(shown, ai_gateway=kept)
        return self.endpoints[command.name]

    async def _patch_tags(self, command: PatchTags, caller: Caller) -> EndpointShown:
        shown = self.find(command.name)
        tags = {
            key: value for key, value in {**shown.tags, **command.add}.items() if key not in command.delete
        }
        self.endpoints[command.name] = replace(shown, tags=tags)
        return self.endpoints[command.name]

    async def _put_stored(self, command: PutStored, caller: Caller) -> EndpointShown:
        shown = self.find(command.name)
        stored = {
            name: value for name, value in {**shown.stored, **command.fields}.items() if value is not None
        }
        self.endpoints[command.name] = replace(shown, stored=stored)
        return self.endpoints[command.name]

    async def _logs(self, command: ReadLogs, caller: Caller) -> Logs:
        shown = self.find(command.name)
        config = shown.config or shown.pending
        if config is None or command.entity not in config.traffic:
            raise ModelNotFound("served_model", f"{command.name} has no served entity {command.entity}")
        return Logs(
            text=f"{command.entity} was built\n" if command.is_build else f"{command.entity} serves\n"
        )

    def _of_id(self, id: str) -> EndpointShown:
        found = next((each for each in self.endpoints.values() if each.id == id), None)
        if found is None:
            raise ModelNotFound("id", f"there is no endpoint with the id {id}")
        return found

    async def _permissions(self, command: GetPermissions, caller: Caller) -> Permissions:
        self._of_id(command.endpoint_id)
        return Permissions(endpoint_id=command.endpoint_id, grants=self.grants.get(command.endpoint_id, ()))

    async def _put_permissions(self, command: PutPermissions, caller: Caller) -> Permissions:
        self._of_id(command.endpoint_id)
        kept = {} if command.replaces_all else self._grants_by_principal(command.endpoint_id)
        kept |= {(each.kind, each.principal): each for each in command.grants}
        self.grants[command.endpoint_id] = tuple(kept.values())
        return await self._permissions(GetPermissions(endpoint_id=command.endpoint_id), caller)

    def _grants_by_principal(self, id: str) -> dict[tuple[str, str], Grant]:
        return {(each.kind, each.principal): each for each in self.grants.get(id, ())}
