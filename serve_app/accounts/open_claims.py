"""Budget claims that gateways have not settled yet, so that they can be given back when a gateway dies.

A gateway that is silent for a while counts as dead. If it lives after all, its later settlements are
still right: if a claim was given back meanwhile, its settlement charges the full use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from serve_app.types import Draw

LEASE_S: Final = 30.0  # a gateway is heard of every few seconds
DUST: Final = 1e-6  # the most that a float64 sum differs from zero if it should be zero


@dataclass(slots=True)
class _Gateway:
    heard: float  # when it was last heard of, on the clock
    open: dict[str, Draw] = field(default_factory=dict)  # by bucket; the amount is what is claimed


class Reservations:
    """Open claims, by gateway and bucket."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` returns seconds and never goes back."""
        self._clock = clock
        self._gateways: dict[str, _Gateway] = {}

    def heard(self, gateway: str) -> None:
        """Record that the gateway is alive."""
        self._of(gateway).heard = self._clock()

    def claimed(self, gateway: str, draws: Iterable[Draw]) -> None:
        """Record that claims were granted."""
        for draw in draws:
            self._change(gateway, draw, draw.amount)

    def settled(self, gateway: str, draws: Iterable[Draw]) -> list[Draw]:
        """The amounts that settlements take from buckets: the full use if their claims were given back."""
        return [self._settled(gateway, draw) for draw in draws]

    def expired(self) -> list[Draw]:
        """The settlement of all open claims of dead gateways; those gateways are then forgotten."""
        now = self._clock()
        dead = [name for name, each in self._gateways.items() if now - each.heard > LEASE_S]
        gone = [self._gateways.pop(name) for name in dead]
        return [replace(draw, amount=-draw.amount) for each in gone for draw in each.open.values()]

    def _settled(self, gateway: str, draw: Draw) -> Draw:
        claimed = self._of(gateway).open.get(draw.bucket)
        known = 0.0 if claimed is None else claimed.amount
        ends = min(draw.released, known)  # negative if a settlement is undone
        self._change(gateway, draw, -ends)
        return replace(draw, amount=draw.amount + draw.released - ends)

    def _change(self, gateway: str, draw: Draw, more: float) -> None:
        claims = self._of(gateway).open
        before = claims.get(draw.bucket)
        amount = more + (0.0 if before is None else before.amount)
        if amount > DUST:
            claims[draw.bucket] = replace(draw, amount=amount, released=0.0)
        else:
            claims.pop(draw.bucket, None)

    def _of(self, gateway: str) -> _Gateway:
        found = self._gateways.get(gateway)
        if found is None:
            found = self._gateways[gateway] = _Gateway(self._clock())
        return found
