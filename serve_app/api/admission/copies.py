"""Running copies of requests for shadow entities: bounded for each endpoint, and ended at once.

A copy needs no permit and no budget, and nothing waits for a copy. Independent of requests.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from typing import Any


class Copies:
    """The tasks of all copies of one gateway. Used from one event loop only, so it needs no lock."""

    def __init__(self) -> None:
        self._tasks: defaultdict[str, set[asyncio.Task[None]]] = defaultdict(set)
        self._is_closed = False

    def under_way(self, endpoint: str) -> int:
        """How many copies of the requests to `endpoint` run now."""
        return len(self._tasks[endpoint])

    def start(self, endpoint: str, most: int, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Run `work` in a task of its own. Does nothing and returns False if `most` copies run, or after
        `close`."""
        if self._is_closed or self.under_way(endpoint) >= most:
            return False
        task = asyncio.create_task(work())
        self._tasks[endpoint].add(task)
        task.add_done_callback(self._tasks[endpoint].discard)
        return True

    def close(self) -> None:
        """End all copies, and start none from now on."""
        self._is_closed = True
        for tasks in self._tasks.values():
            for task in tasks:
                task.cancel()
