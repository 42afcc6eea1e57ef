"""Running requests of this gateway that clients may stop by the ids that they chose.

Gateways do not share these requests: a stop takes effect only if it is sent to the gateway that runs the
request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from serve_app.api.context import RequestContext


class StopKey(NamedTuple):
    """Identifies a request by caller, endpoint and client's id, so no caller can stop another's requests."""

    key_id: str
    endpoint: str
    client_id: str

    @classmethod
    def of(cls, context: RequestContext, endpoint: str, client_id: str) -> StopKey:
        """The key of a request of the caller in `context`."""
        return cls(context.caller.key_id if context.caller else "", endpoint, client_id)


class Stoppable:
    """The running requests that can be stopped. Several requests may have the same key."""

    def __init__(self) -> None:
        self._stops: dict[StopKey, list[Callable[[], None]]] = {}

    @contextmanager
    def entry(self, key: StopKey, stop: Callable[[], None]) -> Iterator[None]:
        """While the block runs, `stop` may be called, at most once."""
        stops = self._stops.setdefault(key, [])
        stops.append(stop)
        try:
            yield
        finally:
            if stop in stops:
                stops.remove(stop)
            if not stops and self._stops.get(key) is stops:
                del self._stops[key]

    def stop(self, key: StopKey) -> bool:
        """Stop the newest request of `key`. Returns whether there was such a request."""
        stops = self._stops.get(key)
        if not stops:
            return False
        stops.pop()()
        return True

    def stop_all(self, key: StopKey) -> None:
        """Stop every request of `key`."""
        while self.stop(key):
            pass
