"""Requests that their clients may stop by an id of their own, while this gateway runs them.

Another gateway of the same server knows nothing of them: a stop reaches a request only
through the gateway that runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from serve_app.api.context import RequestContext


class StopKey(NamedTuple):
    """The caller, the endpoint and the client's id of a request, so that no caller stops another's."""

    key_id: str
    endpoint: str
    client_id: str

    @classmethod
    def of(cls, context: RequestContext, endpoint: str, client_id: str) -> StopKey:
        """The key of a request of the caller in `context`."""
        return cls(context.caller.key_id if context.caller else "", endpoint, client_id)


class Stoppable:
    """The running requests that can be stopped. Several may have one key."""

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
        """Stop the newest request of `key`. Returns whether there was one."""
        stops = self._stops.get(key)
        if not stops:
            return False
        stops.pop()()
        return True

    def stop_all(self, key: StopKey) -> None:
        """Stop every request of `key`."""
        while self.stop(key):
            pass
