"""Live figures between a gateway and the control plane: sends slots, and reads the sums over all gateways.

If nothing happened for five minutes, nothing is sent. A control plane that could not be reached, or has
restarted, gets the missing slots with the next slot, or once it has answered the gateway's next poll.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from serve_app.api.live.pulse import Pulse
from serve_app.deployments.gateway.control.management import AWAY, ITSELF, RETRY_AFTER_S, RemoteManagement
from serve_app.errors import ServeError, Unavailable
from serve_app.types.control.live import LiveSlots, LiveTold, ReadLive, TellLive

logger = logging.getLogger(__name__)

WITHIN_S: Final = 10.0  # for the reply; the next slot does not wait for it


class RemoteLive:
    """An `api.backend.LiveCluster` over the control plane of this cluster."""

    def __init__(self, gateway: str, pulse: Pulse, management: RemoteManagement) -> None:
        """`gateway`: a name that is unique to this run."""
        self._gateway = gateway
        self._slots = pulse.slots
        self._management = management
        self._told = 0  # the number of the last slot that the control plane took
        self.telling: asyncio.Task[None] | None = None  # the latest call

    def tell(self) -> None:
        if self._management.feed.is_connected and (self.telling is None or self.telling.done()):
            self.telling = asyncio.ensure_future(self._tell())

    def tell_again(self) -> None:
        """The control plane has answered a poll. It may be a new control plane, which has no slots yet."""
        if self._slots.after(0):
            self.tell()

    async def read(self, after: int) -> LiveSlots:
        if not self._management.feed.is_connected:
            raise Unavailable(AWAY, retry_after_s=RETRY_AFTER_S)
        return await self._management.call(ReadLive(after=after), ITSELF, WITHIN_S)

    def close(self) -> None:
        if self.telling is not None:
            self.telling.cancel()

    async def _tell(self) -> None:
        """Send slots until none is left, since a slot may end while others are being sent."""
        try:
            while True:
                self._told = min(self._told, self._slots.newest)  # the clock may have been set back
                if (await self._send(self._told)).wants_all:
                    await self._send(0)
                if not self._slots.after(self._told):
                    return
        except ServeError as error:
            logger.debug("the control plane does not take what happens now: %s", error)

    async def _send(self, after: int) -> LiveTold:
        slots = self._slots.after(after)
        command = TellLive(gateway=self._gateway, slots=slots, is_all=after == 0)
        reply = await self._management.call(command, ITSELF, WITHIN_S)
        if slots and not reply.wants_all:
            self._told = slots[-1].number
        return reply
