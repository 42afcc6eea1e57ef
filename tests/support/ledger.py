"""A control plane that has a ledger and nothing else, and calls of it that fail when a test says so."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from serve_app.control.database.database import Database
from serve_app.control.ledger.ledger import Ledger, known_by
from serve_app.control.ledger.tables import Usage
from serve_app.types import Caller, UsageRecord
from serve_app.types.control import Command


class LedgerPlane:
    """An `api.backend.Management` of this process."""

    problem: str | None = None

    def __init__(self, database: Database, **options: Any) -> None:
        self.ledger = Ledger(database, **options)
        self.failure: Exception | None = None  # that every command raises
        self.loses_replies = False  # commands are done, and their caller never hears of it
        self.commands: list[Command[Any]] = []
        self._database = database

    async def do(self, command: Command[Any], caller: Caller) -> Any:
        self.commands.append(command)
        if self.failure is not None:
            raise self.failure
        reply = await self.ledger.handlers()[type(command)](command, caller)
        if self.loses_replies:
            raise ConnectionResetError("the reply was lost")
        return reply

    async def rows(self) -> dict[str, UsageRecord]:
        """All rows of the ledger, by the ids of the requests."""
        return await read_rows(self._database)


async def read_rows(database: Database) -> dict[str, UsageRecord]:
    """All rows of the ledger, by the ids of the requests."""
    rows = await database.run(
        lambda session: [known_by(row).total() for row in session.scalars(select(Usage))]
    )
    return {row.id: row for row in rows}
