"""The control plane: all its parts, put together. Wiring only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, cast

from serve_app.config import ControlConfig, ResponsesConfig
from serve_app.control.database.database import Database
from serve_app.control.database.problem import DatabaseProblem
from serve_app.control.endpoints.cluster import Cluster
from serve_app.control.endpoints.endpoints import Endpoints
from serve_app.control.gateways import Gateways
from serve_app.control.handlers import Handler, joined
from serve_app.control.keys.access import Access
from serve_app.control.keys.keys import Keys
from serve_app.control.keys.permissions import Grants
from serve_app.control.ledger.ledger import Ledger
from serve_app.control.live import Live
from serve_app.control.responses.responses import Responses
from serve_app.control.retention import Retention
from serve_app.control.rollouts.feedback import Feedback
from serve_app.control.rollouts.rollouts import Rollouts
from serve_app.control.rollouts.splits import Splits
from serve_app.control.snapshots import SnapshotParts, Snapshots
from serve_app.errors import Unavailable, UnsupportedField
from serve_app.types import Caller
from serve_app.types.control import Command, ReplyT, WatchSnapshot

logger = logging.getLogger(__name__)

RETRY_S: Final = 1.0  # wait after the database did not answer
WAITING: Final = "the control plane waits for its database"


class ControlPlane:
    """Executes commands; an `api.backend.Management` of this process."""

    def __init__(
        self,
        database: Database,
        cluster: Cluster,
        config: ControlConfig,
        responses: ResponsesConfig | None = None,
        say: Callable[[str], None] = lambda problem: None,
        guardrails_model: str | None = None,
    ) -> None:
        """`say` is called with the reason why the database cannot be opened, and again once it is open.

        `guardrails_model`: see `GatewayConfig`.
        """
        responses = responses or ResponsesConfig()
        self._database = database
        self._say = say
        self._gateways = Gateways()
        parts = SnapshotParts()
        self.snapshots = Snapshots(database, parts, self._gateways)
        self.endpoints = Endpoints(
            database, cluster, config, self._gateways, self.snapshots.changed, guardrails_model
        )
        self.keys = Keys(database, self.snapshots.changed)
        grants = Grants(database, self.snapshots.changed, self.endpoints.name_of)
        self._access = Access(database, grants)
        self.ledger = Ledger(
            database,
            key_budgets=self.keys.budgets,
            changed=self.snapshots.changed,
            untracked=self.endpoints.untracked,
        )
        splits = Splits(self.endpoints.declared, self.snapshots.changed)
        self.rollouts = Rollouts(database, splits)
        self._retention = Retention(database, config.usage_days, responses.keep_days)
        parts.endpoints = self.endpoints.snapshot
        parts.unready = self.endpoints.unready
        parts.keys = self.keys.in_force
        parts.grants = grants.by_endpoint
        parts.over_budget = self.ledger.over_budget
        parts.spent = self.ledger.spent
        self.snapshots.on_report = self.endpoints.reconciler.wake
        areas = (
            *(self.snapshots, self.endpoints, self.keys, grants),
            *(self.ledger, self.rollouts, Feedback(database), Live(), Responses(database, responses)),
        )
        self._handlers: dict[type[Command[Any]], Handler] = joined(area.handlers() for area in areas)
        self._is_open = False
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Open the database as soon as it answers, and run until `close`. Call it on the event loop."""
        self._running = asyncio.ensure_future(self._run())

    async def do(self, command: Command[ReplyT], caller: Caller) -> ReplyT:
        handler = self._handlers.get(type(command))
        if handler is None:
            raise UnsupportedField(None, "the control plane does not know this command")
        if not self._is_open:
            # Only gateways hear it, because the text names hosts and files.
            why = self.problem if isinstance(command, WatchSnapshot) else None
            raise Unavailable(why or f"{WAITING}; try again", retry_after_s=RETRY_S)
        await self._access.check(command, caller)
        return await self._access.seen(cast("ReplyT", await handler(command, caller)), caller)

    @property
    def problem(self) -> str | None:
        """The reason why commands fail; None if they work."""
        return self._database.problem or (None if self._is_open else WAITING)

    @property
    def is_broken(self) -> bool:
        """Whether the control plane has stopped by itself, so that it must be restarted."""
        return self._running is not None and self._running.done()

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.wait({self._running})
        self._database.close()

    async def _run(self) -> None:
        try:
            await self._work()
        except Exception:
            logger.exception("the control plane stops")

    async def _work(self) -> None:
        said: str | None = None
        while not self._is_open:
            try:
                await self._database.run(lambda session: None)  # makes the tables
                self._is_open = True
            except (Unavailable, DatabaseProblem):
                if self.problem not in (None, said):
                    said = self.problem
                    self._say(f"the control plane waits: {said}")
                await asyncio.sleep(RETRY_S)
        if said is not None:
            self._say("the control plane has its database, and works")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.snapshots.run())
            tasks.create_task(self.endpoints.reconciler.run())
            tasks.create_task(self.ledger.run())
            tasks.create_task(self.rollouts.run())
            tasks.create_task(self._retention.run())
