"""What a replica generated for the requests of one gateway; kept until that gateway has recorded it.

A gateway that dies leaves requests without an end in its journal. The replica's ledger then has the usage of
these requests, and another gateway records it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec

from serve_app.types import TokenDelta, Usage, UsageRecord

LOST = "lost"


class Settlement(msgspec.Struct, frozen=True, array_like=True):
    """What one replica generated for one prompt of a client's request, after the request's gateway died."""

    part: str  # the engine request: the same in every copy of this settlement
    gateway: str  # its name, from its ticket
    record: UsageRecord  # the request's record, with the tokens of this part


settlements_decoder: msgspec.msgpack.Decoder[list[Settlement]] = msgspec.msgpack.Decoder(list[Settlement])


@dataclass(slots=True)
class _Entry:
    """A client's request, and the engine requests that answer it, one per prompt."""

    record: UsageRecord
    requests: set[str] = field(default_factory=set)  # ids of engine requests
    parts: dict[str, Usage] = field(default_factory=dict)  # engine request -> usage, once it has tokens


class Ledger:
    """One gateway's requests, until the gateway has recorded their usage."""

    def __init__(self, gateway: str) -> None:
        self._gateway = gateway
        self._by_record: dict[str, _Entry] = {}
        self._by_request: dict[str, _Entry] = {}

    def __len__(self) -> int:
        """The number of clients' requests that are not recorded yet."""
        return len(self._by_record)

    def open(self, request_id: str, record: UsageRecord) -> None:
        """Add the engine request `request_id` to the client's request that `record` identifies."""
        entry = self._by_record.setdefault(record.id, _Entry(record))
        entry.requests.add(request_id)
        self._by_request[request_id] = entry

    def note(self, deltas: Iterable[TokenDelta]) -> None:
        """Record deltas that were sent to the gateway."""
        if not self._by_request:
            return
        for delta in deltas:
            entry = self._by_request.get(delta.request_id)
            if entry is not None and not delta.is_progress:  # progress delivers nothing
                entry.parts[delta.request_id] = delta.usage

    def end(self, request_id: str) -> None:
        """Record that the engine request `request_id` ended. It is forgotten if it has no tokens."""
        entry = self._by_request.get(request_id)
        if entry is not None and request_id not in entry.parts:
            self.drop(request_id)

    def drop(self, request_id: str) -> None:
        """Forget the engine request `request_id`, which the gateway has aborted and accounts for itself."""
        entry = self._by_request.pop(request_id, None)
        if entry is None:
            return
        entry.parts.pop(request_id, None)
        entry.requests.discard(request_id)
        if not entry.requests:
            self._by_record.pop(entry.record.id, None)

    def booked(self, record_ids: Iterable[str]) -> None:
        """Forget clients' requests that the gateway has recorded."""
        for each in record_ids:
            entry = self._by_record.pop(each, None)
            for request_id in () if entry is None else entry.requests:
                self._by_request.pop(request_id, None)

    def settle(self) -> list[Settlement]:
        """Empty the ledger because its gateway is gone; returns the former entries."""
        settlements = [
            Settlement(request_id, self._gateway, _record(entry.record, usage))
            for entry in self._by_record.values()
            for request_id, usage in entry.parts.items()
        ]
        self._by_record.clear()
        self._by_request.clear()
        return settlements


def _record(record: UsageRecord, usage: Usage) -> UsageRecord:
    return replace(
        record,
        outcome=LOST,
        status=200,  # of a stream, whose head goes out with its first delta
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.generated_tokens,
        discarded_tokens=usage.discarded_tokens,
        total_s=max(0.0, time.time() - record.started),
    )
