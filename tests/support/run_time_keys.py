"""Keys that were made at run time: some for a gateway to know, and a control plane of keys alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from serve_app.accounts.accounts import Accounts
from serve_app.accounts.keys import digest_of, new_secret
from serve_app.api.services import Services
from serve_app.control.database.database import Database
from serve_app.control.handlers import joined
from serve_app.control.keys.keys import Keys
from serve_app.control.keys.permissions import Grants
from serve_app.errors import UnsupportedField
from serve_app.types import Caller
from serve_app.types.control import AwaitChanges, Command, Followed, Grant, KnownKey, ReplyT, Snapshot


def run_time_key(name: str, scopes: Sequence[str] = ("inference",), **fields: Any) -> tuple[str, KnownKey]:
    """A key, and what gateways know of it."""
    secret = new_secret()
    whose = {"user": name, "is_service_principal": False, "groups": (), "endpoints": (), **fields}
    return secret, KnownKey(digest=digest_of(secret), name=name, scopes=tuple(scopes), **whose)


def take(services: Services, snapshot: Snapshot) -> None:
    """What a gateway does with a snapshot, as far as callers are concerned."""
    accounts = services.accounts
    if not isinstance(accounts, Accounts):
        raise TypeError("these accounts take no snapshots")
    services.directory.permit(snapshot.grants)
    services.directory.expect(snapshot.unready)
    accounts.take(snapshot)


class KeyPlane:
    """Keys and grants over a real database, as a `Management`. Gateways get each change at once."""

    problem: str | None = None

    def __init__(self, database: Database, names: Mapping[str, str] | None = None) -> None:
        """`names`: id -> name of the endpoints that there are."""
        self.gateways: list[Services] = []
        self._database = database
        self._is_stale = False
        self._version = 0
        self._keys = Keys(database, self._changed)
        self._grants = Grants(database, self._changed, lambda session, id: (names or {}).get(id))
        self._handlers = joined([self._keys.handlers(), self._grants.handlers()])

    async def do(self, command: Command[ReplyT], caller: Caller) -> ReplyT:
        if isinstance(command, AwaitChanges):
            return cast("ReplyT", Followed(behind=0))  # `push` was before
        handler = self._handlers.get(type(command))
        if handler is None:
            raise UnsupportedField(None, "the control plane does not know this command")
        told = cast("ReplyT", await handler(command, caller))
        if self._is_stale:
            self._is_stale = False
            await self.push()
        return told

    async def push(self) -> None:
        """Give every gateway the newest snapshot."""
        self._version += 1
        keys = await self._database.run(self._keys.in_force)
        grants: dict[str, tuple[Grant, ...]] = await self._database.run(self._grants.by_endpoint)
        for services in self.gateways:
            take(services, Snapshot(version=self._version, keys=keys, grants=grants))

    def _changed(self) -> None:
        self._is_stale = True
