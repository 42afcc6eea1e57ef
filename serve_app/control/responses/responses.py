"""Keeps each key's responses, up to a limit of age and of total size. Does not interpret their content."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from sqlalchemy import Select, delete, func, literal, select, update
from sqlalchemy.orm import Session

from serve_app.config import ResponsesConfig
from serve_app.control.database.database import Database
from serve_app.control.handlers import Handlers
from serve_app.control.responses.tables import ResponseRow
from serve_app.limits import MAX_MESSAGES
from serve_app.types import Caller, control

SMALLEST_BYTES: Final = 4096  # a row counts as at least a database page
FILLED: Final = 0.9  # of the bound is left in use after making room, so that it is not needed each time
FRESH_S: Final = 60.0  # the time of use is updated at most this often
ROWS_AT_ONCE: Final = 500  # removed in one statement


class Responses:
    """The stored responses of all keys."""

    def __init__(
        self, database: Database, config: ResponsesConfig, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` gives Unix seconds."""
        self._database = database
        self._config = config
        self._clock = clock

    def handlers(self) -> Handlers:
        return {
            control.KeepResponse: self._keep,
            control.RecallResponses: self._recall,
            control.ForgetResponse: self._forget,
        }

    async def _keep(self, command: control.KeepResponse, caller: Caller) -> control.Done:
        kept, owner, now = command.response, control.owner_of(caller), self._clock()

        def work(session: Session) -> None:
            session.merge(
                ResponseRow(
                    id=kept.id,
                    owner=owner,
                    previous=kept.previous,
                    used=now,
                    size=max(SMALLEST_BYTES, len(kept.input) + len(kept.response)),
                    input=kept.input,
                    response=kept.response,
                )
            )
            session.flush()
            _make_room(session, owner, self._config.bytes_per_key)

        await self._database.run(work)
        return control.Done()

    async def _recall(self, command: control.RecallResponses, caller: Caller) -> control.KeptResponses:
        owner, now = control.owner_of(caller), self._clock()
        oldest = now - self._config.keep_s

        def work(session: Session) -> tuple[control.KeptResponse, ...]:
            ids = set(command.ids)
            if command.last:
                ids.update(session.scalars(_chain(owner, command.last)))
            own = (ResponseRow.owner == owner, ResponseRow.used >= oldest, ResponseRow.id.in_(ids))
            rows = session.scalars(select(ResponseRow).where(*own)).all()
            found = tuple(
                control.KeptResponse(id=row.id, previous=row.previous, input=row.input, response=row.response)
                for row in rows
            )
            if any(row.used < now - FRESH_S for row in rows):
                session.execute(update(ResponseRow).where(*own).values(used=now))
            return found

        return control.KeptResponses(responses=await self._database.run(work))

    async def _forget(self, command: control.ForgetResponse, caller: Caller) -> control.Forgotten:
        oldest = self._clock() - self._config.keep_s
        own = (ResponseRow.id == command.id, ResponseRow.owner == control.owner_of(caller))

        def work(session: Session) -> bool:
            used = session.scalar(select(ResponseRow.used).where(*own))
            session.execute(delete(ResponseRow).where(*own))
            return used is not None and used >= oldest

        return control.Forgotten(found=await self._database.run(work))


def _chain(owner: str, last: str) -> Select[tuple[str]]:
    """The ids of the response `last` and of those before it, up to the limit of items in a prompt."""
    columns = (ResponseRow.id, ResponseRow.previous)
    chain = (
        select(*columns, literal(1).label("number"))
        .where(ResponseRow.owner == owner, ResponseRow.id == last)
        .cte("chain", recursive=True)
    )
    earlier = (
        select(*columns, chain.c.number + 1)
        .join(chain, ResponseRow.id == chain.c.previous)
        .where(ResponseRow.owner == owner, chain.c.number < MAX_MESSAGES)
    )
    return select(chain.union_all(earlier).c.id)


def _make_room(session: Session, owner: str, most: int) -> None:
    """If the owner's responses exceed `most` bytes, remove the least recently used ones."""
    if (session.scalar(select(func.sum(ResponseRow.size)).where(ResponseRow.owner == owner)) or 0) <= most:
        return
    newest_first = (ResponseRow.used.desc(), ResponseRow.id)
    total = func.sum(ResponseRow.size).over(order_by=newest_first).label("total")
    each = select(ResponseRow.id, total).where(ResponseRow.owner == owner).subquery()
    ids = session.scalars(select(each.c.id).where(each.c.total > FILLED * most)).all()
    for i in range(0, len(ids), ROWS_AT_ONCE):
        session.execute(delete(ResponseRow).where(ResponseRow.id.in_(ids[i : i + ROWS_AT_ONCE])))
