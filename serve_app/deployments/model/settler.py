"""Sends to a living gateway what a replica has recorded about the requests of a dead one.

The journal of a killed gateway contains requests without an end. A replica knows which tokens it generated
for these requests. Another gateway of the application, perhaps the dead one's replacement, records these
tokens. A replica keeps each settlement until a gateway has confirmed it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final

import msgspec
from ray import serve
from ray.serve.handle import DeploymentHandle

from serve_app.channel.frames import Ticket
from serve_app.channel.ledger import Settlement

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 20_000  # settlements: some 10 MB
AT_ONCE: Final = 500
ANSWER_S: Final = 30.0  # a gateway that starts takes its time
PAUSE_S: Final = 1.0
STOP_S: Final = 5.0  # for queued settlements when the replica stops

encoder = msgspec.msgpack.Encoder()


class Settler:
    """The settlements of one replica that still have to be sent to a gateway.

    Create it on the replica's event loop, outside any request: Serve may cancel tasks that a request began.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, Settlement]] = deque()  # (application of the gateways, settlement)
        self._handles: dict[str, DeploymentHandle] = {}
        self._wake = asyncio.Event()
        self._closing = False
        self._task = asyncio.create_task(self._run())

    def take(self, ticket: Ticket, settlements: list[Settlement]) -> None:
        """Queue `settlements` for any gateway of the ticket's application. Never waits or fails."""
        if not ticket.app:
            return
        self._waiting.extend((ticket.app, each) for each in settlements)
        while len(self._waiting) > MAX_WAITING:
            self._waiting.popleft()
            logger.warning("too many settlements wait for a gateway; the oldest is lost")
        self._wake.set()

    async def close(self) -> None:
        """Deliver the waiting settlements; takes `STOP_S` at most."""
        self._closing = True
        self._wake.set()
        await asyncio.wait({self._task}, timeout=STOP_S)
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        while not (self._closing and not self._waiting):
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                app, _ = self._waiting[0]
                batch = [each for name, each in self._waiting if name == app][:AT_ONCE]
                try:
                    await self._send(app, batch)
                except Exception as error:
                    logger.info("%d settlements wait for a gateway: %s", len(batch), type(error).__name__)
                    await asyncio.sleep(PAUSE_S)
                    continue
                done = {id(each) for each in batch}
                self._waiting = deque(each for each in self._waiting if id(each[1]) not in done)
                logger.info("settled %d requests of a gateway that is gone", len(batch))

    async def _send(self, app: str, batch: list[Settlement]) -> None:
        handle = self._handles.get(app)
        if handle is None:
            # Waits for the controller, so not on this loop.
            handle = self._handles[app] = await asyncio.to_thread(serve.get_app_handle, app)
        async with asyncio.timeout(ANSWER_S):
            await handle.settle.remote(encoder.encode(batch))
