"""API keys that are made, changed and ended at run time.

The secret of a key leaves this module only once, in the reply to the command that makes the key; the database
stores the secret's digest and first characters. A change reaches gateways with the next snapshot, and every
gateway checks keys in its own memory: a request never asks the database.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from serve_app.accounts.keys import SHOWN_CHARS, digest_of, new_secret
from serve_app.control.database.database import Database
from serve_app.control.handlers import Handlers
from serve_app.control.keys.rules import check_administrator, check_budgets, check_change, check_new
from serve_app.control.keys.tables import ApiKey
from serve_app.control.ledger.budgets import KeyBudget, month_of, spent_in
from serve_app.control.ledger.tables import Usage
from serve_app.errors import AlreadyExists, Conflict, ModelNotFound, Overloaded, Unavailable
from serve_app.limits import MAX_KEYS
from serve_app.types import Caller, Scope, control

ToldT = TypeVar("ToldT", control.KnownKey, control.KeyShown)

_OLDEST_FIRST: Final = (ApiKey.created, ApiKey.name, ApiKey.id)
FIRST_KEY: Final = (
    "the first key must have the scope 'manage', every endpoint and no end: from then on each request needs "
    "a key, and nobody else could make another"
)
LAST_KEY: Final = (
    "this is the last key by which keys can be managed: its scope 'manage' on every endpoint without an end. "
    "Make another such key first, or put one into the key file"
)


class Keys:
    """The keys in the database."""

    def __init__(
        self, database: Database, changed: Callable[[], None], now: Callable[[], float] = time.time
    ) -> None:
        """`changed` is called after each change; `now` gives Unix seconds."""
        self._database = database
        self._changed = changed
        self._now = now
        self._kept: tuple[control.KeyShown, ...] | None = None  # keys in force when last read

    def handlers(self) -> Handlers:
        return {
            control.CreateKey: self._create,
            control.UpdateKey: self._update,
            control.ListKeys: self._list,
            control.RevokeKey: self._revoke,
            control.RotateKey: self._rotate,
        }

    def in_force(self, session: Session) -> tuple[control.KnownKey, ...]:
        """For snapshots: the keys that gateways accept, without their spending."""
        found = session.scalars(
            select(ApiKey).where(_is_in_force(self._now())).order_by(*_OLDEST_FIRST)
        ).all()
        self._kept = tuple(_told(control.KeyShown, key) for key in found)
        return tuple(_told(control.KnownKey, key) for key in sorted(found, key=lambda key: key.name))

    def budgets(self, session: Session) -> Iterable[KeyBudget]:
        """For the ledger: the keys in force that have a budget."""
        bounded = or_(ApiKey.budget.is_not(None), ApiKey.soft_budget.is_not(None))
        for key in session.scalars(select(ApiKey).where(_is_in_force(self._now()), bounded)):
            yield KeyBudget(
                key=key.name, budget=key.budget, soft_budget=key.soft_budget, currency=key.currency
            )

    async def _create(self, command: control.CreateKey, caller: Caller) -> control.CreatedKey:
        """Raises InvalidField, PermissionDenied or AlreadyExists; Conflict if no key could manage keys."""
        check_administrator(caller)
        check_new(command)
        secret = new_secret()
        created = await self._database.run(lambda session: self._insert(session, command, caller, secret))
        self._changed()
        return control.CreatedKey(secret=secret, shown=created)

    def _insert(
        self, session: Session, command: control.CreateKey, caller: Caller, secret: str
    ) -> control.KeyShown:
        now = self._now()
        names = set(session.scalars(select(ApiKey.name).where(_is_in_force(now))))
        if command.name in names:
            raise AlreadyExists(f"name: a key of the name {command.name} is in force")
        if len(names) >= MAX_KEYS:
            raise Overloaded(f"{MAX_KEYS} keys are in force, which is the limit; revoke some first")
        key = ApiKey(
            id=secrets.token_hex(8),
            name=command.name,
            digest=digest_of(secret),
            prefix=secret[:SHOWN_CHARS],
            user=command.user or command.name,
            is_service_principal=command.is_service_principal,
            groups=_sorted(command.groups),
            scopes=_sorted(command.scopes),
            endpoints=_sorted(command.endpoints),
            creator=caller.owner,
            created=now,
            expires=None if command.lifetime_s is None else now + command.lifetime_s,
            revoked=None,
            budget=command.budget,
            soft_budget=command.soft_budget,
            currency=command.currency,
            comment=command.comment,
        )
        session.add(key)
        self._check_way_in(session, caller, FIRST_KEY)
        return _told(control.KeyShown, key)

    async def _update(self, command: control.UpdateKey, caller: Caller) -> control.KeyShown:
        """Raises InvalidField, PermissionDenied or ModelNotFound; Conflict if no key could manage keys."""
        check_administrator(caller)
        check_change(command)
        shown = await self._database.run(lambda session: self._change(session, command, caller))
        self._changed()
        return shown

    def _change(self, session: Session, command: control.UpdateKey, caller: Caller) -> control.KeyShown:
        key = self._find(session, command.id)
        key.groups = key.groups if command.groups is None else _sorted(command.groups)
        key.scopes = key.scopes if command.scopes is None else _sorted(command.scopes)
        key.endpoints = key.endpoints if command.endpoints is None else _sorted(command.endpoints)
        key.comment = key.comment if command.comment is None else command.comment
        for name in command.clear:
            setattr(key, name, None)
        key.budget = key.budget if command.budget is None else command.budget
        key.soft_budget = key.soft_budget if command.soft_budget is None else command.soft_budget
        check_budgets(key.budget, key.soft_budget)
        self._check_way_in(session, caller, LAST_KEY)
        return _told(control.KeyShown, key)

    async def _list(self, command: control.ListKeys, caller: Caller) -> control.KeyList:
        """Lists keys; if the database is unreachable, those in force when it was last read."""
        check_administrator(caller)
        try:
            return await self._database.run(lambda session: self._read(session, command))
        except Unavailable:
            if self._kept is None:
                raise
            now = self._now()
            kept = (key for key in self._kept if key.expires is None or key.expires > now)
            return control.KeyList(keys=tuple(kept), is_kept=True)

    def _read(self, session: Session, command: control.ListKeys) -> control.KeyList:
        query = select(ApiKey).order_by(*_OLDEST_FIRST)
        if not command.everything:
            query = query.where(_is_in_force(self._now()))
        used, spent = last_uses(session), spent_in(session, month_of(self._now()))
        return control.KeyList(
            keys=tuple(
                replace(
                    _told(control.KeyShown, key),
                    last_used=used.get(key.id),
                    spent=spent.get((key.name, key.currency), 0.0),
                )
                for key in session.scalars(query)
            )
        )

    async def _rotate(self, command: control.RotateKey, caller: Caller) -> control.CreatedKey:
        """Raises PermissionDenied, ModelNotFound or Overloaded; Conflict for a former secret."""
        check_administrator(caller)
        secret = new_secret()
        shown = await self._database.run(lambda session: self._replace(session, command, secret))
        self._changed()
        return control.CreatedKey(secret=secret, shown=shown)

    def _replace(self, session: Session, command: control.RotateKey, secret: str) -> control.KeyShown:
        """Give the key a new secret. The former one goes on as a key with the same name, until it expires."""
        key, now = self._find(session, command.id), self._now()
        if key is not _newest(self._of_name(session, key.name)):
            raise Conflict(
                f"this is a former secret of the key {key.name}: rotate the key itself, by its name"
            )
        former = {column.name: getattr(key, column.name) for column in ApiKey.__table__.c}
        key.digest, key.prefix, key.created = digest_of(secret), secret[:SHOWN_CHARS], now
        session.flush()
        if command.grace_s > 0:
            in_force = select(func.count()).select_from(ApiKey).where(_is_in_force(now))
            if (session.scalar(in_force) or 0) >= MAX_KEYS:
                raise Overloaded(f"{MAX_KEYS} keys are in force, which is the limit; revoke some first")
            end = min(now + command.grace_s, key.expires or math.inf)
            session.add(ApiKey(**former | {"id": secrets.token_hex(8), "expires": end}))
        return _told(control.KeyShown, key)

    async def _revoke(self, command: control.RevokeKey, caller: Caller) -> control.Done:
        """Raises PermissionDenied or ModelNotFound; Conflict if no key could then manage keys."""
        check_administrator(caller)
        await self._database.run(lambda session: self._end(session, command, caller))
        self._changed()
        return control.Done()

    def _end(self, session: Session, command: control.RevokeKey, caller: Caller) -> None:
        """A key is ended together with its former secrets; a former secret is ended alone."""
        now, key = self._now(), self._find(session, command.id)
        of_name = self._of_name(session, key.name)
        for each in of_name if key is _newest(of_name) else (key,):
            each.revoked = now
        self._check_way_in(session, caller, LAST_KEY)

    def _find(self, session: Session, id: str) -> ApiKey:
        """A key in force, by its id or its name. Raises ModelNotFound."""
        named = or_(ApiKey.id == id, ApiKey.name == id)
        found = session.scalars(select(ApiKey).where(_is_in_force(self._now()), named)).all()
        if not found:
            raise ModelNotFound("id", "no key in force has this id or name")
        # A name may look like the id of another key: ids take precedence.
        return next((each for each in found if each.id == id), _newest(found))

    def _of_name(self, session: Session, name: str) -> Sequence[ApiKey]:
        """The key with this name that is in force, and its former secrets."""
        return session.scalars(select(ApiKey).where(_is_in_force(self._now()), ApiKey.name == name)).all()

    def _check_way_in(self, session: Session, caller: Caller, why: str) -> None:
        """Raises Conflict, with `why`, if no key could manage keys after this transaction.

        If the caller's own key is from the key file or the environment, that key can still manage.
        """
        if not caller.anonymous and not caller.at_run_time:
            return
        session.flush()
        lasting = select(ApiKey).where(ApiKey.revoked.is_(None), ApiKey.expires.is_(None))
        if not any(Scope.MANAGE in key.scopes and not key.endpoints for key in session.scalars(lasting)):
            raise Conflict(why)


def _is_in_force(now: float) -> ColumnElement[bool]:
    return and_(ApiKey.revoked.is_(None), or_(ApiKey.expires.is_(None), ApiKey.expires > now))


def _newest(keys: Sequence[ApiKey]) -> ApiKey:
    """The newest of several keys with one name; the others are former secrets that have not expired yet."""
    return max(keys, key=lambda key: key.created)


def _sorted(names: tuple[str, ...]) -> list[str]:
    return sorted(set(names))


def _told(kind: type[ToldT], key: ApiKey) -> ToldT:
    """The column values for the fields of `kind`, by name."""
    columns = [each.name for each in fields(kind) if each.name in ApiKey.__table__.c]
    values: dict[str, Any] = {name: getattr(key, name) for name in columns}
    values |= {name: tuple(each) for name, each in values.items() if isinstance(each, list)}
    return kind(**values)


def last_uses(session: Session) -> Mapping[str, float]:
    """The Unix time at which the newest request of each key began, by the key's id.

    Requests older than a key belong to an earlier key with the same name. This is one index look-up
    for each key, however large the ledger is.
    """
    newest = select(func.max(Usage.started)).where(Usage.key_id == ApiKey.name).scalar_subquery()
    found = session.execute(select(ApiKey.id, ApiKey.created, newest))
    return {id: used for id, created, used in found if used is not None and used >= created}
