"""Replicas that Serve counts although they do not answer, since their process or network has stopped.

Serve's controller drops such a replica after several checks, which take most of a minute. Until then, a
gateway sends the replica no requests. Replicas are checked only while one is suspect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from ray.exceptions import RayError
from ray.serve.handle import DeploymentHandle

from serve_app.deployments.gateway.presence import chooser_of

logger = logging.getLogger(__name__)

ANSWER_S: Final = 5.0  # for a question that every replica answers at once
LOOK_S: Final = 1.0  # between two checks while a replica is silent


class SilentReplicas:
    """The replicas of one model that do not answer, checked after a report."""

    def __init__(self, handle: DeploymentHandle, on_change: Callable[[], None]) -> None:
        self._handle = handle
        self._on_change = on_change
        self._silent: set[Any] = set()  # ids of replicas, as Serve has them
        self._looking: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """The number of silent replicas among those that Serve counts."""
        chooser = chooser_of(self._handle)
        return 0 if chooser is None else len(self._silent & chooser.curr_replicas.keys())

    def suspect(self) -> None:
        """Check all replicas, because one fell silent, before Serve's router sends them more requests."""
        if (chooser := chooser_of(self._handle)) is None:
            return
        for id in tuple(chooser.curr_replicas):
            chooser.on_replica_actor_unavailable(id)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look())

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    async def _look(self) -> None:
        while (chooser := chooser_of(self._handle)) is not None:
            replicas = dict(chooser.curr_replicas)
            answered = await asyncio.gather(*map(_answers, replicas.values()))
            silent = {id for id, does in zip(replicas, answered, strict=True) if not does}
            for id in silent:
                chooser.on_replica_actor_unavailable(id)
            if silent != self._silent:
                self._silent = silent
                logger.warning("%d of %d replicas do not answer", len(silent), len(replicas))
                self._on_change()
            if not silent:
                return
            await asyncio.sleep(LOOK_S)


async def _answers(replica: Any) -> bool:
    try:
        async with asyncio.timeout(ANSWER_S):
            await replica.get_queue_len(deadline_s=ANSWER_S)
    except (TimeoutError, RayError):
        return False
    return True
