"""What a replica generated for the requests of one gateway, kept until the gateway wrote it down.

A gateway that dies leaves requests without an end in its journal. What is on its tabs then says
what they used, and another gateway writes that down (see `deployments/settler.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec

from serve_app.types import TokenDelta, Usage, UsageRecord

LOST = "lost"


class Settlement(msgspec.Struct, frozen=True, array_like=True):
    """What one replica generated for a request whose gateway is gone."""

    part: str  # of the request: the same in every copy, another for each replica that worked on it
    gateway: str  # that is gone, as its ticket names it
    record: UsageRecord  # of the request, with the tokens of this part


@dataclass(slots=True)
class _Tab:
    """One request of a client, which may be several of ours."""

    record: UsageRecord
    requests: set[str] = field(default_factory=set)  # ours
    parts: dict[str, Usage] = field(default_factory=dict)  # by our request, as far as there are tokens


class Tabs:
    """The open tabs of one gateway."""

    def __init__(self, gateway: str) -> None:
        self._gateway = gateway
        self._by_record: dict[str, _Tab] = {}
        self._by_request: dict[str, _Tab] = {}

    def __len__(self) -> int:
        """Requests of clients that are not written down yet."""
        return len(self._by_record)

    def open(self, request_id: str, record: UsageRecord) -> None:
        """Our request `request_id` belongs to the client's request of `record`."""
        tab = self._by_record.setdefault(record.id, _Tab(record))
        tab.requests.add(request_id)
        self._by_request[request_id] = tab

    def note(self, deltas: Iterable[TokenDelta]) -> None:
        """These were sent to the gateway."""
        if not self._by_request:
            return
        for delta in deltas:
            tab = self._by_request.get(delta.request_id)
            if tab is not None and not delta.is_progress:  # which delivers nothing
                tab.parts[delta.request_id] = delta.usage

    def end(self, request_id: str) -> None:
        """Nothing more will be sent; a tab without tokens is worth nothing."""
        tab = self._by_request.get(request_id)
        if tab is not None and request_id not in tab.parts:
            self.drop(request_id)

    def drop(self, request_id: str) -> None:
        """The gateway does not want our request `request_id`."""
        tab = self._by_request.pop(request_id, None)
        if tab is None:
            return
        tab.parts.pop(request_id, None)
        tab.requests.discard(request_id)
        if not tab.requests:
            self._by_record.pop(tab.record.id, None)

    def booked(self, record_ids: Iterable[str]) -> None:
        """The gateway wrote down what these requests of clients used."""
        for each in record_ids:
            tab = self._by_record.pop(each, None)
            for request_id in () if tab is None else tab.requests:
                self._by_request.pop(request_id, None)

    def settle(self) -> list[Settlement]:
        """The gateway is gone: close all tabs, and tell what is on them."""
        tabs = [tab for tab in self._by_record.values() if tab.parts]
        self._by_record.clear()
        self._by_request.clear()
        return [Settlement(min(tab.parts), self._gateway, _record(tab)) for tab in tabs]


def _record(tab: _Tab) -> UsageRecord:
    used = tab.parts.values()
    return replace(
        tab.record,
        outcome=LOST,
        status=200,  # of a stream, whose head goes out with its first delta
        prompt_tokens=sum(usage.prompt_tokens for usage in used),
        cached_tokens=sum(usage.cached_tokens for usage in used),
        completion_tokens=sum(usage.generated_tokens for usage in used),
        discarded_tokens=sum(usage.discarded_tokens for usage in used),
        total_s=max(0.0, time.time() - tab.record.started),
    )
