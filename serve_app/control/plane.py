"""The control plane: all its parts, put together. Wiring only."""

from __future__ import annotations

from typing import Any, cast

from serve_app.control.database.database import Database
from serve_app.control.handlers import Handler, joined
from serve_app.errors import UnsupportedField
from serve_app.types import Caller
from serve_app.types.control import Command, ReplyT


class ControlPlane:
    """Does what commands say; an `api.backend.Management` of this process."""

    def __init__(self, database: Database) -> None:
        self._handlers: dict[type[Command[Any]], Handler] = joined([])

    async def do(self, command: Command[ReplyT], caller: Caller) -> ReplyT:
        """See `api.backend.Management`."""
        handler = self._handlers.get(type(command))
        if handler is None:
            raise UnsupportedField(None, "the control plane does not know this command")
        return cast("ReplyT", await handler(command, caller))
