"""The commands for endpoints: they check and store the wanted state, and the reconciler brings it about."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from serve_app.config import ControlConfig
from serve_app.control import counters
from serve_app.control.database.database import RETRY_S, Database
from serve_app.control.endpoints import registry
from serve_app.control.endpoints.cluster import Cluster, Offer, Room
from serve_app.control.endpoints.configure import Configurator
from serve_app.control.endpoints.known import KnownEndpoint, KnownEndpoints
from serve_app.control.endpoints.named import Named
from serve_app.control.endpoints.offers import Offers
from serve_app.control.endpoints.reconciler import Reconciler
from serve_app.control.endpoints.shown import Sights, declared, declared_id, shown
from serve_app.control.endpoints.state import loaded
from serve_app.control.endpoints.tables import EndpointRow
from serve_app.control.endpoints.tasks import check_tasks
from serve_app.control.gateways import Gateways
from serve_app.control.handlers import Handlers
from serve_app.endpoints.ai_gateway import AiGateway
from serve_app.endpoints.catalogue import Catalogue, CatalogueError, parse_catalogue
from serve_app.endpoints.endpoint import Endpoint, Kind
from serve_app.errors import AlreadyExists, Conflict, ModelNotFound, Unavailable
from serve_app.types import Caller, control


@dataclass(frozen=True, slots=True)
class _Ground:
    """The facts about the cluster that a new configuration needs, read before the transaction."""

    offers: tuple[Offer, ...]
    room: Room


class Endpoints:
    """Run-time endpoints. Those of the deploy file are listed beside them, and are read-only."""

    def __init__(
        self,
        database: Database,
        cluster: Cluster,
        config: ControlConfig,
        gateways: Gateways,
        changed: Callable[[], None],
        guardrails_model: str | None = None,
    ) -> None:
        """`changed`: see `Snapshots.changed`. `guardrails_model`: see `GatewayConfig`."""
        self._database = database
        self._cluster = cluster
        self._config = config
        self._gateways = gateways
        self._changed = changed
        self._known = KnownEndpoints()
        self._named = Named(self.declared, guardrails_model)
        self._read_declared: tuple[dict[str, Any], dict[str, Endpoint]] = ({}, {})
        self.reconciler = Reconciler(
            database,
            cluster,
            gateways,
            changed,
            self._known,
            start_timeout_s=config.start_timeout_s,
            declared=self.declared,
        )

    def handlers(self) -> Handlers:
        return {
            control.CreateEndpoint: self._create,
            control.UpdateConfig: self._update,
            control.GetEndpoint: self._get,
            control.ListEndpoints: self._list,
            control.DeleteEndpoint: self._delete,
            control.PutAiGateway: self._put_ai_gateway,
            control.PatchTags: self._patch_tags,
            control.PutStored: self._put_stored,
            control.ReadLogs: self._read_logs,
        }

    def snapshot(self, session: Session) -> dict[str, bytes]:
        """The endpoints that serve, by name, as JSON for gateways."""
        every = self._known.read(session).values()
        return {each.row.name: served for each in every if (served := each.served) is not None}

    def unready(self, session: Session) -> dict[str, str]:
        """The endpoints without a serving configuration, each with the reason."""
        every = self._known.read(session).values()
        return {each.row.name: why for each in every if (why := each.unready) is not None}

    def declared(self) -> Mapping[str, Endpoint]:
        """The endpoints of the deploy file by name, as the gateways have them."""
        raw, found = self._read_declared
        if raw != self._gateways.declared:
            raw = self._gateways.declared
            try:
                found = {each.name: each for each in parse_catalogue(raw).endpoints}
            except CatalogueError:  # from another version of the server; the former catalogue stays
                return found
            self._read_declared = raw, found
        return found

    def untracked(self, session: Session) -> frozenset[str]:
        """The endpoints whose usage tracking is off."""
        rows = [each.row for each in self._known.read(session).values()]
        made = {row.name: AiGateway.model_validate(row.ai_gateway) for row in rows}
        declared = {name: endpoint.ai_gateway for name, endpoint in self.declared().items()}
        return frozenset(name for name, each in (made | declared).items() if not each.tracks_usage)

    def name_of(self, session: Session, endpoint_id: str) -> str | None:
        """The name of the endpoint, declared or not, with this id; None if there is none."""
        row = registry.by_id(session, endpoint_id)
        if row is not None:
            return row.name
        return next((name for name in self.declared() if declared_id(name) == endpoint_id), None)

    async def _create(self, command: control.CreateEndpoint, caller: Caller) -> control.EndpointShown:
        if command.name in self.declared():
            raise AlreadyExists(f"the endpoint {command.name!r} is declared in the deploy file")
        ground = await self._ground()
        kind = Kind.PROVISIONED if command.is_provisioned else Kind.PAY_PER_TOKEN

        def work(session: Session) -> EndpointRow:
            config = self._configurator(session, ground).configuration(
                command.name,
                command.config,
                None,
                version=1,
                is_provisioned=command.is_provisioned,
                creator=caller.owner,
                now=time.time(),
            )
            check_tasks(config, command.task, self.declared())
            settings = _ai_gateway(command.ai_gateway)
            self._named.check(session, command.name, settings, caller, "ai_gateway.")
            row = registry.add(
                session,
                name=command.name,
                kind=kind,
                task=command.task,
                creator=caller.owner,
                config=config,
                description=command.description,
                tags=dict(command.tags),
                ai_gateway=settings,
                stored=command.stored,
            )
            return _detached(session, row)

        return self._changed_to(await self._database.run(work))

    async def _update(self, command: control.UpdateConfig, caller: Caller) -> control.EndpointShown:
        self._refuse_declared(command.name)
        ground = await self._ground()

        def work(session: Session) -> EndpointRow:
            row = registry.find(session, command.name)
            registry.refuse_busy(row)
            former = None if row.serving is None else loaded(row.serving)
            config = self._configurator(session, ground).configuration(
                row.name,
                command.config,
                former,
                version=row.config_version + 1,
                is_provisioned=any(each.is_sized for each in command.config.entities),
                creator=caller.owner,
                now=time.time(),
            )
            check_tasks(config, row.task, self.declared())
            registry.begin_update(session, row, config)
            return _detached(session, row)

        return self._changed_to(await self._database.run(work))

    async def _get(self, command: control.GetEndpoint, caller: Caller) -> control.EndpointShown:
        if (endpoint := self.declared().get(command.name)) is not None:
            return declared(endpoint, self._sights())
        try:
            row = await self._database.run(lambda s: _detached(s, registry.find(s, command.name)))
        except Unavailable:
            known = (each.row for each in self._kept().values() if each.row.name == command.name)
            if (row_kept := next(known, None)) is None:
                raise registry.unknown(command.name) from None
            row = row_kept
        return shown(row, self._sights())

    async def _list(self, command: control.ListEndpoints, caller: Caller) -> control.EndpointList:
        sights = self._sights()
        known: Mapping[str, KnownEndpoint]
        try:
            known = await self._database.run(self._known.read)
        except Unavailable:
            known = self._kept()
        found = {each.row.name: shown(each.row, sights) for each in known.values()}
        found |= {name: declared(endpoint, sights) for name, endpoint in self.declared().items()}
        seen = (found[name] for name in sorted(found) if not caller.endpoints or name in caller.endpoints)
        return control.EndpointList(endpoints=tuple(seen))

    async def _delete(self, command: control.DeleteEndpoint, caller: Caller) -> control.Done:
        self._refuse_declared(command.name)
        await self._database.run(lambda s: registry.remove(s, registry.find(s, command.name)))
        self._changed()
        self.reconciler.wake()
        return control.Done()

    async def _put_ai_gateway(self, command: control.PutAiGateway, caller: Caller) -> control.EndpointShown:
        def change(session: Session, row: EndpointRow) -> None:
            given = {name: part for name, part in command.settings.items() if part is not None}
            self._named.check(session, row.name, _ai_gateway(given), caller)  # the rest stays as it is
            kept = {name: part for name, part in row.ai_gateway.items() if name not in command.settings}
            row.ai_gateway = _ai_gateway({**kept, **given})
            for config in (row.serving, row.pending):
                if config is not None:
                    registry.check(row, loaded(config), shadow=row.shadow)

        return self._changed_to(await self._edited(command.name, change))

    async def _patch_tags(self, command: control.PatchTags, caller: Caller) -> control.EndpointShown:
        def change(session: Session, row: EndpointRow) -> None:
            kept = {key: value for key, value in row.tags.items() if key not in command.delete}
            row.tags = {**kept, **command.add}

        return shown(await self._edited(command.name, change), self._sights())

    async def _put_stored(self, command: control.PutStored, caller: Caller) -> control.EndpointShown:
        def change(session: Session, row: EndpointRow) -> None:
            merged = {**row.stored, **command.fields}
            row.stored = {key: value for key, value in merged.items() if value is not None}

        return shown(await self._edited(command.name, change), self._sights())

    async def _read_logs(self, command: control.ReadLogs, caller: Caller) -> control.Logs:
        if (endpoint := self.declared().get(command.name)) is not None:
            found = endpoint.entity(command.entity)
            if found is None:
                raise _no_entity(command.entity, [each.name for each in endpoint.served_entities])
            text = "" if command.is_build else await self._cluster.logs(found.app)
            return control.Logs(text=text)
        row, events = await self._database.run(lambda s: _with_events(s, command.name))
        configs = [loaded(raw) for raw in (row.serving, row.pending) if raw is not None]
        entities = {each.wanted.name: each for config in configs for each in config.entities}
        entity = entities.get(command.entity)
        if entity is None:
            raise _no_entity(command.entity, list(entities))
        if command.is_build:
            return control.Logs(text="".join(f"{_stamp(at)} {text}\n" for at, text in events))
        return control.Logs(text=await self._cluster.logs(entity.app))

    async def _edited(self, name: str, change: Callable[[Session, EndpointRow], None]) -> EndpointRow:
        """Apply `change` to an endpoint made at run time, in one transaction; returns its row."""
        self._refuse_declared(name)

        def work(session: Session) -> EndpointRow:
            row = registry.find(session, name)
            change(session, row)
            row.updated = time.time()
            return _detached(session, row)

        return await self._database.run(work)

    def _kept(self) -> Mapping[str, KnownEndpoint]:
        """The endpoints as last read before the database became unreachable. Raises Unavailable if they were
        never read."""
        if self._known.newest is None:
            raise Unavailable("the database does not answer; try again", retry_after_s=RETRY_S)
        return self._known.newest

    async def _ground(self) -> _Ground:
        room = await self._cluster.room() if self._config.check_resources else Room()
        return _Ground(await self._cluster.offers(), room)

    def _configurator(self, session: Session, ground: _Ground) -> Configurator:
        catalogue = Catalogue(endpoints=tuple(self.declared().values()))
        return Configurator(
            Offers(ground.offers, self._config, catalogue),
            self._config,
            ground.room,
            lambda: counters.advance(session, counters.REVISION),
            self._cluster.least_memory,
        )

    def _changed_to(self, row: EndpointRow) -> control.EndpointShown:
        """The endpoint after a change; notifies gateways and the reconciler."""
        self._changed()
        self.reconciler.wake()
        return shown(row, self._sights())

    def _sights(self) -> Sights:
        return Sights(self.reconciler.apps, self._gateways.ready)

    def _refuse_declared(self, name: str) -> None:
        if name in self.declared():
            raise Conflict(
                f"the endpoint {name!r} is declared in the deploy file, which alone changes it: edit the "
                "file, and deploy it"
            )


def _ai_gateway(raw: dict[str, Any]) -> dict[str, Any]:
    """Validated settings, as plain values. Raises InvalidField."""
    return AiGateway.checked(raw).model_dump(mode="json", exclude_unset=True)


def _no_entity(name: str, known: list[str]) -> ModelNotFound:
    return ModelNotFound("served_entity", f"there is no served entity {name!r}; there is: {', '.join(known)}")


def _stamp(at: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def _detached(session: Session, row: EndpointRow) -> EndpointRow:
    """The row in its current state, for use after the transaction."""
    session.flush()
    session.refresh(row)
    session.expunge(row)
    return row


def _with_events(session: Session, name: str) -> tuple[EndpointRow, list[tuple[float, str]]]:
    row = registry.find(session, name)
    events = registry.events(session, row)
    return _detached(session, row), events
