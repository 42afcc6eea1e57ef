"""Puts a new catalogue into effect: endpoint by endpoint, each as soon as its models can answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from serve_app.api.directory import Directory
from serve_app.deployments.gateway.backend import ServeBackend
from serve_app.endpoints.catalogue import Catalogue
from serve_app.endpoints.succession import succession

logger = logging.getLogger(__name__)

LOOK_S: Final = 0.1  # between two looks whether the awaited applications can answer


class Takeover:
    """Puts catalogues into effect; the newest wins."""

    def __init__(
        self,
        directory: Directory,
        backend: ServeBackend,
        wait_s: float,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """`wait_s`: how long an endpoint stays as it was for applications that cannot answer yet.

        `on_change`: called when an endpoint that waited has changed.
        """
        self._on_change = on_change
        self._directory = directory
        self._backend = backend
        self._wait_s = wait_s
        self._task: asyncio.Task[None] | None = None

    def begin(self, catalogue: Catalogue) -> None:
        """Take over at once the endpoints that need not wait, and the others as soon as they can answer."""
        self.close()
        self._directory.refused = False
        until = asyncio.get_running_loop().time() + self._wait_s
        if not self._advance(catalogue, until):
            self._task = asyncio.ensure_future(self._follow(catalogue, until))

    def close(self) -> None:
        """Stop: endpoints that still wait stay as they are."""
        if self._task is not None:
            self._task.cancel()

    async def _follow(self, catalogue: Catalogue, until: float) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            if self._advance(catalogue, until):
                return

    def _advance(self, catalogue: Catalogue, until: float) -> bool:
        """Whether all of `catalogue` is in effect."""
        before = dict(self._directory.waiting)
        is_late = asyncio.get_running_loop().time() >= until
        old, new = tuple(self._directory), catalogue.endpoints
        self._backend.serve(old, coming=new)  # looks for what is new, so that one can tell
        now = succession(() if is_late else old, new, self._backend.answers)
        self._backend.serve(now.endpoints, coming=new)
        self._directory.take(now.endpoints, now.waiting)
        for name in before.keys() - now.waiting.keys():
            if is_late:
                logger.warning(
                    "endpoint %s changes without %s: the wait is over", name, ", ".join(before[name])
                )
            else:
                logger.info("endpoint %s has changed", name)
        for name in now.waiting.keys() - before.keys():
            logger.info(
                "endpoint %s stays as it was until %s can answer, at most %.0f s",
                name,
                ", ".join(now.waiting[name]),
                self._wait_s,
            )
        if before.keys() != now.waiting.keys():
            self._on_change()
        return not now.waiting
