"""When Serve tells a replica to stop: scaled down, replaced, on a node that is drained or taken away.

Serve 2.60 stops to send requests to such a replica, and waits until those that it has are answered. It
calls nothing of a deployment before that: its destructor runs afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ray.serve._private.replica import Replica

_stop = Replica._perform_graceful_shutdown


def on_stop(tell: Callable[[], None]) -> None:
    """Call `tell` on this event loop as soon as Serve tells this process's replica to stop.

    For constructors. Serve goes on as ever, and may run on a loop of its own.
    """
    loop = asyncio.get_running_loop()

    async def told(self: Any) -> None:
        loop.call_soon_threadsafe(tell)
        await _stop(self)

    Replica._perform_graceful_shutdown = told
