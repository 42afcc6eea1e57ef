"""The gateway's limits on concurrent work: one permit for each prompt, and the bytes of bodies.

A request that would exceed either limit is refused at once; nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from serve_app.errors import InvalidField, Overloaded, Unavailable
from serve_app.limits import MAX_BODIES_BYTES, SMALL_BODY_BYTES

RETRY_AFTER_S = 1.0
RETRY_ELSEWHERE_S = 5.0  # a server that stops takes some seconds to come back
STOPPING = "the server is stopping; it finishes what it has begun and takes nothing new"


class BodyBytes:
    """Counts the bytes of all bodies from their arrival to the end of their requests.

    Objects made from a body live as long as its request, so limiting the bytes limits the memory of both.
    Used from one event loop only, so it needs no lock.
    """

    def __init__(self, most: int = MAX_BODIES_BYTES, small: int = SMALL_BODY_BYTES) -> None:
        self._most = most
        self._small = small
        self._held = 0

    @property
    def held(self) -> int:
        return self._held

    @contextmanager
    def lease(self) -> Iterator[Lease]:
        """Room for one body, given back at the end of the block."""
        lease = Lease(self)
        try:
            yield lease
        finally:
            self._held -= lease.held

    def _fits(self, held: int, more: int) -> bool:
        return held + more <= self._small or self._held + more <= self._most


class Lease:
    """The bytes of one body so far."""

    def __init__(self, bodies: BodyBytes) -> None:
        self._bodies = bodies
        self.held = 0

    def take(self, count: int) -> None:
        """Account for `count` bytes that arrived. Raises Overloaded; small bodies always fit."""
        if not self._bodies._fits(self.held, count):
            raise Overloaded("the server holds too many long bodies; try again", retry_after_s=RETRY_AFTER_S)
        self.held += count
        self._bodies._held += count


class Admission:
    """Counts the prompts in this gateway. Used from one event loop only, so it needs no lock."""

    def __init__(self, max_in_flight: int) -> None:
        self._max = max_in_flight
        self._in_flight = 0
        self._is_closed = False
        self.when_closed: Callable[[], None] = lambda: None  # called by `close`

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def close(self) -> None:
        """Admit nothing more. Requests keep the permits that they have."""
        self._is_closed = True
        self.when_closed()

    def check(self, count: int = 1) -> None:
        """Raises Overloaded if `count` more prompts would be too many; Unavailable after `close`."""
        if self._is_closed:
            raise Unavailable(STOPPING, retry_after_s=RETRY_ELSEWHERE_S)
        if self._in_flight + count > self._max:
            raise Overloaded("the server is at capacity; try again", retry_after_s=RETRY_AFTER_S)

    @contextmanager
    def permits(self, count: int) -> Iterator[None]:
        """Hold `count` permits, one per prompt, for the duration of the block.

        Raises Overloaded or Unavailable; raises InvalidField if `count` exceeds the total number of permits.
        """
        if count > self._max:
            raise InvalidField("prompt", f"must hold at most {self._max} prompts here")
        self.check(count)
        self._in_flight += count
        try:
            yield
        finally:
            self._in_flight -= count


def deadline_s(asked: float | None, limit: float) -> float:
    """How many seconds a request may take: as the client wishes, but at most the gateway's limit."""
    return limit if asked is None else min(asked, limit)
