"""How much the gateway takes on at once: a permit per prompt, refused at once when none is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from serve_app.errors import Overloaded

RETRY_AFTER_S = 1.0


class Admission:
    """Counts the prompts in this gateway. One event loop only, so no lock."""

    def __init__(self, max_in_flight: int) -> None:
        self._max = max_in_flight
        self._in_flight = 0

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def check(self, count: int = 1) -> None:
        """Raises Overloaded unless there is room for `count` more."""
        if self._in_flight + count > self._max:
            raise Overloaded("the server is at capacity; try again", retry_after_s=RETRY_AFTER_S)

    @contextmanager
    def permits(self, count: int) -> Iterator[None]:
        """Hold `count` permits for the duration of the block. Raises Overloaded."""
        self.check(count)
        self._in_flight += count
        try:
            yield
        finally:
            self._in_flight -= count


def deadline_s(asked: float | None, limit: float) -> float:
    """Seconds a request may live: the client's wish, never more than the gateway's limit."""
    return limit if asked is None else min(asked, limit)
