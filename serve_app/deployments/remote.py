"""One model's application as a gateway sees it: missing, loading, asleep or answering."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

import msgspec
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatus, DeploymentStatus, ReplicaState

from serve_app.channel.receiver import Receiver
from serve_app.deployments.quarantine import Quarantine
from serve_app.deployments.route import Route
from serve_app.endpoints.endpoint import ServedEntity
from serve_app.errors import Overloaded, Unavailable
from serve_app.types import ModelInfo

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.25  # between looks for a model that is not there yet
DOWN_S: Final = 10.0  # most replicas are back by then, and requests rather wait for them
REFRESH_S: Final = 5.0  # between questions to one that answers: it may have been deployed anew

_info_decoder: msgspec.msgpack.Decoder[ModelInfo] = msgspec.msgpack.Decoder(ModelInfo)


class RemoteModel:
    """Found and asked for its `ModelInfo` in the background, so that it never delays other models.

    A model without a replica, scaled to zero, is asleep: it counts as ready, is left alone
    until a request comes, and wakes up with it.
    """

    def __init__(self, entity: ServedEntity, receiver: Receiver, quarantine: Quarantine) -> None:
        self._app = entity.app
        self._expected = (entity.model, entity.version)
        self._receiver = receiver
        self._quarantine = quarantine
        self._handle: DeploymentHandle | None = None
        self._waking: asyncio.Task[ModelInfo] | None = None
        self._down_since: float | None = None  # the event loop's time
        self.info: ModelInfo | None = None
        self.route: Route | None = None
        self.missing: str | None = "not deployed yet"  # why it cannot answer; None: it can
        self._watching = asyncio.ensure_future(self._watch())

    def serves(self, entity: ServedEntity) -> bool:
        """Whether this is still what `entity` names."""
        return self._expected == (entity.model, entity.version)

    def close(self) -> None:
        """Stop looking. Requests under way go on."""
        self._watching.cancel()
        if self._waking is not None:
            self._waking.cancel()

    async def wake(self) -> ModelInfo:
        """What the model is, once it can answer. Raises Unavailable or Overloaded."""
        if self.missing is not None or self._handle is None:
            raise Unavailable("the model is loading; try again", retry_after_s=2.0)
        if self.info is not None:
            return self.info
        if self._waking is None or self._waking.done():
            logger.info("application %s: waking up", self._app)
            self._waking = asyncio.ensure_future(self._ask(self._handle))
        # Shielded: the first request may leave while others wait for the same.
        return await asyncio.shield(self._waking)

    async def _ask(self, handle: DeploymentHandle) -> ModelInfo:
        try:
            info = _info_decoder.decode(await handle.info.remote())
        except BackPressureError as error:
            raise Overloaded("the model's queue is full; try again", retry_after_s=1.0) from error
        except (RayError, RayServeException) as error:
            raise Unavailable("the model did not come up; try again", retry_after_s=2.0) from error
        if (info.name, info.version) != self._expected:
            self.missing = f"it serves {_words(info.name, info.version)}, not {_words(*self._expected)}"
            raise Unavailable("the model is not the one that is configured", retry_after_s=10.0)
        self.info = info
        return info

    async def _watch(self) -> None:
        """Find the model, then keep `info` and `missing` true while it is awake."""
        await self._find()
        while True:
            await asyncio.sleep(REFRESH_S)
            if self._handle is None:
                continue
            if self.missing is None and not self._receiver.stats(self._app):
                await self._look_for_replicas()
                if self.missing is None:
                    continue  # it may sleep, and a question would wake it
            try:
                await self._ask(self._handle)
                self._is_up()
            except Exception as error:
                logger.debug("application %s: %s", self._app, type(error).__name__)

    async def _look_for_replicas(self) -> None:
        """Refuse requests once all replicas have been down for a while, instead of having them wait."""
        try:
            is_down = await asyncio.to_thread(_is_down, self._app)
        except Exception as error:
            logger.debug("application %s: %s", self._app, type(error).__name__)
            return
        now = asyncio.get_running_loop().time()
        self._down_since = (self._down_since or now) if is_down else None
        if self._down_since is not None and now - self._down_since >= DOWN_S and self.route is not None:
            logger.warning("application %s: no replica runs; requests are refused", self._app)
            self.missing = "its replicas died; others are being started"
            self.route.give_up()

    def _is_up(self) -> None:
        self.missing = self._down_since = None
        if self.route is not None:
            self.route.is_down = False

    async def _find(self) -> None:
        """Wait until the application is deployed and its model answers or sleeps."""
        while True:
            try:
                if await self._look():
                    logger.info("application %s is ready", self._app)
                    return
            except Exception as error:
                # Whatever it is, a look is repeated: a cluster that starts has many faces.
                logger.debug("application %s: %s", self._app, type(error).__name__)
            await asyncio.sleep(RETRY_S)

    async def _look(self) -> bool:
        # Both calls wait for the controller, so not on this loop; a handle is made once.
        if self._handle is None:
            self._handle = await asyncio.to_thread(serve.get_app_handle, self._app)
        if await asyncio.to_thread(_has_replica, self._app):
            self.missing = "loading"
            await self._ask(self._handle)
        self.route = Route(self._handle, self._receiver, self._quarantine)
        self.missing = None
        return True


def _has_replica(app: str) -> bool:
    """Whether the application has, or is about to have, a replica; false when it sleeps.

    Raises Unavailable when it is not deployed, or not so far that one could tell.
    """
    status = serve.status().applications.get(app)
    if status is None:
        raise Unavailable("not deployed yet")
    states = [state for each in status.deployments.values() for state in each.replica_states]
    gone = {ReplicaState.STOPPING.value, ReplicaState.PENDING_MIGRATION.value}
    if any(state not in gone for state in states):
        return True
    if status.status != ApplicationStatus.RUNNING:
        # It may be about to sleep, and a call would wake it.
        raise Unavailable("loading")
    return False


def _is_down(app: str) -> bool:
    """Whether replicas died and none runs: neither asleep, nor waking up, nor being deployed."""
    status = serve.status().applications.get(app)
    if status is None:
        return False
    states = [state for each in status.deployments.values() for state in each.replica_states]
    unhealthy = any(each.status == DeploymentStatus.UNHEALTHY for each in status.deployments.values())
    return unhealthy and ReplicaState.RUNNING.value not in states


def _words(model: str, version: str) -> str:
    return f"{model} version {version}" if version else model
