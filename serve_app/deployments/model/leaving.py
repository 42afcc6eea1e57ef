"""Notices when Serve stops a replica: scaled down, replaced, or on a node that is drained or taken away.

Serve 2.60 sends no more requests to such a replica, and waits until its requests are answered. It has no
hook for this: the destructor runs afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ray.serve._private.replica import Replica

_stop = Replica._perform_graceful_shutdown


def on_stop(tell: Callable[[], None]) -> None:
    """Call `tell` on this event loop as soon as Serve stops this process's replica.

    For constructors. Serve's own behaviour is unchanged, and it may run on a loop of its own.
    """
    loop = asyncio.get_running_loop()

    async def stopping(self: Any) -> None:
        loop.call_soon_threadsafe(tell)
        await _stop(self)

    Replica._perform_graceful_shutdown = stopping
