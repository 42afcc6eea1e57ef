"""Live figures of all gateways, kept only in memory: nothing here needs the database."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from serve_app.control.handlers import Handlers
from serve_app.live.ring import AHEAD, Ring
from serve_app.types import Caller
from serve_app.types.control.live import SLOT_S, LiveSlots, LiveTold, ReadLive, TellLive

logger = logging.getLogger(__name__)


class Live:
    """Sums up the slots that gateways report. After a restart every gateway reports all its slots."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock`: Unix seconds. The clocks of gateways must agree with this one to within a few seconds."""
        self._slots = Ring(clock)
        self._newest: dict[str, int] = {}  # gateway -> the last slot accepted from it
        self._ahead: set[str] = set()  # gateways whose clock was ahead at their last report

    def handlers(self) -> Handlers:
        return {TellLive: self._take, ReadLive: self._read}

    async def _take(self, command: TellLive, caller: Caller) -> LiveTold:
        oldest, latest = self._slots.oldest, self._slots.newest
        self._newest = {
            gateway: min(number, latest) for gateway, number in self._newest.items() if number > oldest
        }
        newest = self._newest.get(command.gateway)
        if newest is None and not command.is_all:
            return LiveTold(wants_all=True)
        slots = [slot for slot in command.slots if slot.number <= latest]
        self._note_clock(command.gateway, is_ahead=len(slots) < len(command.slots))
        for slot in slots:
            if newest is None or slot.number > newest:  # otherwise accepted before: the reply was lost
                self._slots.add(slot)
        if slots:
            self._newest[command.gateway] = max(newest or 0, slots[-1].number)
        return LiveTold(wants_all=False)

    def _note_clock(self, gateway: str, *, is_ahead: bool) -> None:
        """Log once that figures are dropped, until the gateway's clock is right again."""
        if is_ahead and gateway not in self._ahead:
            logger.warning(
                "live figures of gateway %s are dropped: its clock is more than %g s ahead of ours",
                gateway,
                AHEAD * SLOT_S,
            )
            self._ahead.add(gateway)
        elif not is_ahead:
            self._ahead.discard(gateway)

    async def _read(self, command: ReadLive, caller: Caller) -> LiveSlots:
        return LiveSlots(slots=self._slots.after(command.after))
