"""Live figures of all gateways: counts in slots of two seconds, and their reports.

A slot is a span of the Unix clock: slot N lasts from N * SLOT_S to (N + 1) * SLOT_S.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from serve_app.types.control.command import Command

SLOT_S: Final = 2.0
NUM_SLOTS: Final = 150  # five minutes are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class EntityCounts:
    """The counts of one served entity in a slot. Latencies are counted in the buckets of `live.latencies`."""

    endpoint: str
    entity: str
    requests: int = 0  # that ended, however they did
    errors: int = 0  # of those: the server failed (5xx, or a stream that broke)
    refused: int = 0  # of those: 4xx
    prompt_tokens: int = 0
    completion_tokens: int = 0  # counted as they are generated
    in_flight: int = 0  # requests under way at the slot's end
    first_token: dict[int, int] = field(default_factory=dict)  # of streams; bucket -> how many
    inter_token: dict[int, int] = field(default_factory=dict)  # between two steps of a stream


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """The engine of one replica at a slot's end."""

    app: str  # its Serve application
    running: int = 0  # sequences in the batch
    waiting: int = 0  # sequences that wait for a step
    blocks_total: int = 0  # of the KV cache
    blocks_used: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSlot:
    """One slot, without idle entities and replicas."""

    number: int
    entities: tuple[EntityCounts, ...] = ()
    replicas: dict[str, ReplicaLoad] = field(default_factory=dict)  # by the replica's id

    @property
    def is_empty(self) -> bool:
        return not self.entities and not self.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveTold:
    """The reply to `TellLive`. A control plane that has just started requests all slots of a gateway."""

    wants_all: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TellLive(Command[LiveTold]):
    """Report the slots of one gateway since its last report. May be sent again: each slot counts once."""

    gateway: str  # unique to one run of one gateway
    slots: tuple[LiveSlot, ...]  # by number, rising
    is_all: bool = False  # no older slot of this gateway is left


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSlots:
    """Slots by number, in ascending order. If a number is missing, its slot was empty."""

    slots: tuple[LiveSlot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLive(Command[LiveSlots]):
    """Read the slots of all gateways together, after slot number `after`."""

    after: int
