"""Ships the usage journals of this node to the control plane's ledger.

Every gateway has a shipper, of which a lock in the journals' folder elects the active one. That one also
ships the journals of gateways that died. The journals keep everything as long as the control plane or its
database cannot be reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from serve_app.accounts.journal_files import sizes
from serve_app.accounts.journal_tail import Batch, JournalTail
from serve_app.api.backend import Management
from serve_app.errors import ServeError
from serve_app.types import Caller, Scope
from serve_app.types.control import SettledPart, ShipUsage

logger = logging.getLogger(__name__)

EVERY_S: Final = 1.0  # between two checks of the journals
CALM_LOOKS: Final = 5  # if no journal grew, every fifth check reads them: their writer may be gone
LONGEST_S: Final = 10.0  # between two tries while records are not accepted
SWEEP_S: Final = 3600.0  # between two sweeps of old files
DAY_S: Final = 86_400.0
COMPLAIN_S: Final = 60.0  # between two log lines about that
CALLER: Final = Caller(key_id="gateway", scopes=frozenset({Scope.MANAGE}), salt="")


class Shipper:
    """Ships from `start` until `close`, both on one event loop."""

    def __init__(
        self, folder: Path, management: Management, *, keep_days: int, every_s: float = EVERY_S
    ) -> None:
        """`folder`: of the journals. `keep_days`: how long shipped files are kept."""
        self._keep_s = keep_days * DAY_S
        self._swept = -math.inf
        self._folder = folder
        self._tail = JournalTail(folder)
        self._files = ThreadPoolExecutor(1, thread_name_prefix="usage-shipper")  # of all calls to the tail
        self._management = management
        self._every_s = every_s
        self._batch: Batch | None = None  # given by the tail, and not committed
        self._sizes: dict[str, int] = {}  # of the journals, by the newest look
        self._calm = 0  # looks since they were read
        self._complained = -COMPLAIN_S
        self.behind = 0  # bytes of journals that have not arrived yet, by the newest look
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="usage-shipper")

    async def close(self) -> None:
        """Stop at once. Another gateway that uses this folder will ship the rest."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await asyncio.get_running_loop().run_in_executor(self._files, self._tail.close)
        self._files.shutdown()

    async def _run(self) -> None:
        pause_s = self._every_s
        while True:
            await asyncio.sleep(pause_s)
            if self._is_calm():
                continue
            try:
                while await self._ship():
                    pass
                pause_s, self._calm = self._every_s, 0
            except Exception as error:
                pause_s, self._calm = min(LONGEST_S, 2 * pause_s), CALM_LOOKS
                self._complain(error)
            with contextlib.suppress(OSError):
                self.behind = await asyncio.get_running_loop().run_in_executor(self._files, self._look)

    def _is_calm(self) -> bool:
        """Whether to skip reading, because no journal has changed and the last reading was recent."""
        self._calm += 1
        try:
            found = sizes(self._folder)
        except OSError:
            return False
        before, self._sizes = self._sizes, found
        return self._tail.is_elected and found == before and self._calm < CALM_LOOKS

    async def _ship(self) -> bool:
        """Ship new records; returns whether there may be more. After an error the batch is shipped again."""
        run_in_executor = asyncio.get_running_loop().run_in_executor
        if self._batch is None:
            self._batch = await run_in_executor(self._files, self._next)
        batch = self._batch
        if batch is None:
            return False
        if len(batch):
            await self._management.do(_command(batch), CALLER)
        self._batch = None  # it has arrived: if the next line fails, a restart ships it again
        await run_in_executor(self._files, self._tail.commit, batch)
        return batch.is_full or len(batch) > 0

    def _next(self) -> Batch | None:
        return self._tail.next() if self._tail.elect() else None

    def _look(self) -> int:
        """The number of bytes that have not reached the ledger yet. Also removes old files once an hour."""
        if time.monotonic() - self._swept >= SWEEP_S:
            self._swept = time.monotonic()
            if removed := self._tail.remove_arrived(time.time() - self._keep_s):
                logger.info("%d files of usage journals were old and shipped, and are removed", removed)
        return self._tail.behind()

    def _complain(self, error: Exception) -> None:
        now = time.monotonic()
        if now - self._complained >= COMPLAIN_S:
            self._complained = now
            reason = error.message if isinstance(error, ServeError) else repr(error)
            logger.warning("usage records wait in the journal and are shipped later: %s", reason)


def _command(batch: Batch) -> ShipUsage:
    return ShipUsage(
        ended=tuple(batch.ended),
        lost=tuple(batch.lost),
        settled=tuple(SettledPart(record=record, part=part) for record, part in batch.settled),
    )
