"""Grants: what users, groups and service principals may do with an endpoint.

They are stored by the endpoint's id, which is never reused: a new endpoint of an old name has no grants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from serve_app.control.database.database import Database
from serve_app.control.handlers import Handlers
from serve_app.control.keys.rules import check_grants
from serve_app.control.keys.tables import EndpointGrant
from serve_app.endpoints.permissions import Level, level_of
from serve_app.errors import InvalidField, ModelNotFound, PermissionDenied, Unavailable
from serve_app.limits import MAX_ENDPOINT_GRANTS
from serve_app.types import Caller
from serve_app.types.control import GetPermissions, Grant, Permissions, PutPermissions

NameOf = Callable[[Session, str], str | None]  # an endpoint's id -> its name, if it exists


class Grants:
    """The grants in the database."""

    def __init__(self, database: Database, changed: Callable[[], None], name_of: NameOf) -> None:
        """`changed` is called after each change."""
        self._database = database
        self._changed = changed
        self._name_of = name_of
        self._newest: dict[str, tuple[Grant, ...]] | None = None  # as read last

    def handlers(self) -> Handlers:
        return {GetPermissions: self._get, PutPermissions: self._put}

    def by_endpoint(self, session: Session) -> dict[str, tuple[Grant, ...]]:
        """For snapshots: the grants by the endpoint's name, for existing endpoints."""
        found: dict[str, list[Grant]] = {}
        rows = select(EndpointGrant).order_by(EndpointGrant.kind, EndpointGrant.principal)
        for row in session.scalars(rows):
            found.setdefault(row.endpoint_id, []).append(_grant(row))
        names = {endpoint_id: self._name_of(session, endpoint_id) for endpoint_id in found}
        self._newest = {name: tuple(found[id]) for id, name in names.items() if name is not None}
        return self._newest

    async def known(self) -> dict[str, tuple[Grant, ...]]:
        """The grants by the endpoint's name; as last read if the database is unreachable."""
        try:
            return await self._database.run(self.by_endpoint)
        except Unavailable:
            if self._newest is None:
                raise
            return self._newest

    async def _get(self, command: GetPermissions, caller: Caller) -> Permissions:
        """Raises ModelNotFound, also for an endpoint that the caller may not see."""

        def work(session: Session) -> Permissions:
            self._check(session, command.endpoint_id, caller, Level.CAN_VIEW)
            return _permissions(session, command.endpoint_id)

        return await self._database.run(work)

    async def _put(self, command: PutPermissions, caller: Caller) -> Permissions:
        """Raises InvalidField, ModelNotFound or PermissionDenied."""
        check_grants(command.grants)

        def work(session: Session) -> Permissions:
            self._check(session, command.endpoint_id, caller, Level.CAN_MANAGE)
            before = {} if command.replaces_all else _by_principal(session, command.endpoint_id)
            grants = before | {(grant.kind, grant.principal): grant for grant in command.grants}
            if len(grants) > MAX_ENDPOINT_GRANTS:
                most = f"an endpoint has at most {MAX_ENDPOINT_GRANTS} grants"
                raise InvalidField("access_control_list", most)
            session.execute(delete(EndpointGrant).where(EndpointGrant.endpoint_id == command.endpoint_id))
            session.add_all(
                EndpointGrant(endpoint_id=command.endpoint_id, **asdict(grant)) for grant in grants.values()
            )
            session.flush()
            return _permissions(session, command.endpoint_id)

        now = await self._database.run(work)
        self._changed()
        return now

    def _check(self, session: Session, endpoint_id: str, caller: Caller, needed: Level) -> None:
        name = self._name_of(session, endpoint_id)
        grants = _permissions(session, endpoint_id).grants
        level = None if name is None else level_of(caller, name, grants)
        if level is None:
            raise ModelNotFound("id", "no endpoint that the API key may see has this id")
        if level < needed:
            raise PermissionDenied(f"this needs {needed.name} on the endpoint")


def _permissions(session: Session, endpoint_id: str) -> Permissions:
    return Permissions(endpoint_id=endpoint_id, grants=tuple(_by_principal(session, endpoint_id).values()))


def _by_principal(session: Session, endpoint_id: str) -> dict[tuple[str, str], Grant]:
    query = select(EndpointGrant).where(EndpointGrant.endpoint_id == endpoint_id)
    rows = session.scalars(query.order_by(EndpointGrant.kind, EndpointGrant.principal))
    return {(row.kind, row.principal): _grant(row) for row in rows}


def _grant(row: EndpointGrant) -> Grant:
    return Grant(principal=row.principal, kind=row.kind, level=row.level)
