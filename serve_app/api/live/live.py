"""Live figures: of all gateways if a control plane sums them up, otherwise only of this gateway."""

from __future__ import annotations

from dataclasses import dataclass

from serve_app.api.backend import LiveCluster
from serve_app.api.live.pulse import Pulse
from serve_app.errors import Unavailable
from serve_app.types.control.live import LiveSlot


@dataclass(frozen=True, slots=True)
class Seen:
    """Slots, and whether they cover all gateways."""

    slots: tuple[LiveSlot, ...]  # by number, rising; empty ones are left out
    is_whole: bool


class Live:
    """The slots of the last five minutes."""

    def __init__(self, pulse: Pulse) -> None:
        self.pulse = pulse
        self._cluster: LiveCluster | None = None

    def join(self, cluster: LiveCluster) -> None:
        """Report this gateway's slots to `cluster`, and read the slots of all gateways there."""
        self._cluster = cluster
        self.pulse.on_slot = cluster.tell

    async def after(self, number: int) -> Seen:
        """The slots after slot `number`. While the control plane is down, only this gateway's own slots."""
        if self._cluster is None:
            return Seen(self.pulse.slots.after(number), is_whole=False)
        try:
            return Seen((await self._cluster.read(number)).slots, is_whole=True)
        except Unavailable:
            return Seen(self.pulse.slots.after(number), is_whole=False)
