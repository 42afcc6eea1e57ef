"""Makes snapshots and returns them to gateways, which long-poll for the next one.

A part of the control plane calls `changed` after its data has changed. A snapshot is then read from the
database in one transaction, and has a new version if it differs from the one before. The author of a change
may wait until the change is in force in all gateways.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy.orm import Session

from serve_app.control import counters
from serve_app.control.database.database import Database
from serve_app.control.gateways import Gateways
from serve_app.control.handlers import Handlers
from serve_app.errors import Unavailable
from serve_app.types import Caller
from serve_app.types.control import AwaitChanges, Followed, Grant, KnownKey, Snapshot, WatchSnapshot

logger = logging.getLogger(__name__)

RETRY_S: Final = 1.0  # wait after the database did not answer
LOOK_S: Final = 5.0  # between looks at the clock
STEP_S: Final = 1.0  # the least jump of the clock that counts
FOLLOW_S: Final = 5.0  # for gateways to put a change into force; a live one takes milliseconds


@dataclass(slots=True)
class SnapshotParts:
    """The functions that read the parts of a snapshot. Each one reads within the snapshot's transaction."""

    endpoints: Callable[[Session], dict[str, bytes]] = lambda session: {}
    unready: Callable[[Session], dict[str, str]] = lambda session: {}
    keys: Callable[[Session], tuple[KnownKey, ...]] = lambda session: ()
    grants: Callable[[Session], dict[str, tuple[Grant, ...]]] = lambda session: {}
    # Name of a key -> why its requests are refused, and the warning in its answers; "": none.
    over_budget: Callable[[Session], Mapping[str, tuple[str, str]]] = lambda session: {}
    # The month, and the spending of keys in it, by name.
    spent: Callable[[Session], tuple[str, Mapping[str, float]]] = lambda session: ("", {})


class Snapshots:
    """The newest snapshot, and the gateways that wait for the next one."""

    def __init__(
        self,
        database: Database,
        parts: SnapshotParts,
        gateways: Gateways,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`clock` gives Unix seconds."""
        self._database = database
        self._clock = clock
        self._parts = parts
        self._gateways = gateways
        self._newest: Snapshot | None = None
        self._made_with = self._set_to()
        self._stale = asyncio.Event()
        self._stale.set()
        self._changes = 0  # how often `changed` was called
        self._seen = -1  # how many of these calls the newest snapshot covers
        self._news = asyncio.Event()  # set and replaced when there may be a new snapshot or report
        self.on_report: Callable[[], None] = lambda: None  # called when a gateway reports something new

    def changed(self) -> None:
        """Make a new snapshot soon, because the data of a part changed. Never waits."""
        self._changes += 1
        self._stale.set()

    def handlers(self) -> Handlers:
        return {WatchSnapshot: self._watch, AwaitChanges: self._follow}

    async def run(self) -> None:
        """Make snapshots, until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stale.wait()
            # A clock that was ahead may have expired keys or begun a month: start over once it is right.
            if not self._stale.is_set() and not self._is_set_since():
                continue
            self._stale.clear()
            try:
                await self._make()
            except Unavailable:
                self._stale.set()
                await asyncio.sleep(RETRY_S)
            except Exception:  # a part is wrong; keep the previous snapshot, and retry at the next change
                logger.exception("a snapshot could not be made")

    def _set_to(self) -> float:
        """The clock's offset, which changes only when the machine's clock is set."""
        return self._clock() - time.monotonic()

    def _is_set_since(self) -> bool:
        """Whether the machine's clock was set after the reading of the newest snapshot began."""
        return abs(self._set_to() - self._made_with) >= STEP_S

    async def _make(self) -> None:
        changes, self._made_with = self._changes, self._set_to()
        newest = await self._database.run(lambda session: self._read(session, self._newest))
        self._seen = changes
        if self._is_set_since():  # it may have been read before or after the clock was set
            self._stale.set()
        if newest is not self._newest:
            self._newest = newest
            logger.info("snapshot %d", newest.version)
        self._announce()

    def _announce(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _read(self, session: Session, before: Snapshot | None) -> Snapshot:
        over, (month, spent) = self._parts.over_budget(session), self._parts.spent(session)
        keys = []
        for key in self._parts.keys(session):
            hard, soft = over.get(key.name, ("", ""))
            if key.budget is not None:
                key = replace(key, spent=spent.get(key.name, 0.0), month=month)
            keys.append(replace(key, over_budget=hard, over_soft_budget=soft))
        found = Snapshot(
            version=0 if before is None else before.version,
            endpoints=self._parts.endpoints(session),
            unready=self._parts.unready(session),
            keys=tuple(keys),
            grants=self._parts.grants(session),
        )
        if before is not None and found == before:
            return before
        return replace(found, version=counters.advance(session, counters.SNAPSHOT))

    async def _watch(self, command: WatchSnapshot, caller: Caller) -> Snapshot:
        """The newest snapshot, as soon as it differs from the gateway's.

        If the wait times out, returns a snapshot with nothing but its version. A gateway's version may come
        from another database, so any different version counts as new.
        """
        if self._gateways.take(command.report, command.number):
            self._announce()
            self.on_report()
        try:
            async with asyncio.timeout(command.wait_s):
                while self._newest is None or self._newest.version == command.after:
                    await self._news.wait()
                return replace(self._newest, problem=self._database.problem or "")
        except TimeoutError:
            if self._newest is None:
                raise Unavailable("the control plane has no snapshot yet", retry_after_s=RETRY_S) from None
            return Snapshot(version=command.after, problem=self._database.problem or "")

    async def _follow(self, command: AwaitChanges, caller: Caller) -> Followed:
        """Wait for gateways; returns how many of them do not apply all changes so far.

        If a gateway is too slow, later calls do not wait for it until it reports.
        """
        changes, endpoint, gateways = self._changes, command.endpoint, self._gateways
        version: int | None = None  # version of the first snapshot with the changes
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FOLLOW_S):
                while self._newest is None or self._seen < changes:
                    await self._news.wait()
                version = self._newest.version
                while not gateways.are_known or gateways.awaited(gateways.behind(version, endpoint)):
                    await self._news.wait()
        if version is None:
            return Followed(behind=len(gateways))
        behind = gateways.behind(version, endpoint)
        if late := gateways.awaited(behind):
            logger.warning("%d gateways do not serve by snapshot %d yet", len(late), version)
            gateways.give_up(late)
        return Followed(behind=len(behind))
