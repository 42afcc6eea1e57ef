"""The api layer's backend over Serve: which models there are, and how to reach them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import asdict
from typing import Any, Final

import msgspec
import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from serve_app.channel.receiver import Receiver
from serve_app.deployments.quarantine import Quarantine
from serve_app.deployments.route import Route
from serve_app.endpoints.names import app_name
from serve_app.errors import ModelNotFound, Unavailable
from serve_app.types import EngineStats, GenerateRequest, ModelInfo, TokenDelta

logger = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"
RETRY_S: Final = 0.25  # between looks for a model that is not there yet
WATCH_NODES_S: Final = 2.0

_OLDEST: Final = "heartbeat_age_s"  # the one statistic that is not a sum

_info_decoder: msgspec.msgpack.Decoder[ModelInfo] = msgspec.msgpack.Decoder(ModelInfo)


class ServeBackend:
    """The models behind this gateway.

    Each model is found and asked for its `ModelInfo` in the background, so that a model
    that loads or is missing never delays requests to the others.
    """

    def __init__(self, models: Sequence[str], receiver: Receiver) -> None:
        self._receiver = receiver
        self._quarantine = Quarantine()
        self._infos: dict[str, ModelInfo] = {}
        self._routes: dict[str, Route] = {}
        self._missing: dict[str, str] = dict.fromkeys(models, "not deployed yet")
        self._names = tuple(models)
        self._tasks = [asyncio.ensure_future(self._find(model)) for model in models]
        self._tasks.append(asyncio.ensure_future(self._watch_nodes()))

    def models(self) -> list[ModelInfo]:
        """The models that can answer, in the order of the configuration."""
        return [self._infos[name] for name in self._names if name in self._infos]

    async def model(self, name: str) -> ModelInfo:
        """What is known of a model. Raises ModelNotFound, or Unavailable while it loads."""
        return self._info(name)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[TokenDelta], None]:
        """The deltas of `request`; see `Route.generate`. Raises as `model` does."""
        self._info(request.model)
        async with aclosing(self._routes[request.model].generate(request)) as steps:
            async for deltas in steps:
                yield deltas

    async def not_ready(self) -> list[str]:
        """The models that cannot answer yet, and why."""
        return [f"{name}: {why}" for name, why in self._missing.items()]

    def stats(self) -> dict[str, EngineStats]:
        """For each model, the newest statistics of the replicas that serve this gateway, summed."""
        return {name: total(self._receiver.stats(name)) for name in self._infos}

    def _info(self, name: str) -> ModelInfo:
        info = self._infos.get(name)
        if info is not None:
            return info
        if name in self._missing:
            raise Unavailable("the model is loading; try again", retry_after_s=2.0)
        raise ModelNotFound("model: no such model", param="model")

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._receiver.close()

    async def _find(self, model: str) -> None:
        """Wait until `model` is deployed and answers, however long that takes."""
        while True:
            try:
                # Blocks on the controller, so not on this loop; a handle is made once.
                handle: DeploymentHandle = await asyncio.to_thread(serve.get_app_handle, app_name(model))
                self._missing[model] = "loading"
                info = _info_decoder.decode(await handle.info.remote())
            except Exception as error:
                self._missing[model] = "not deployed yet"
                logger.debug("model %s: %s", model, type(error).__name__)
                await asyncio.sleep(RETRY_S)
                continue
            self._routes[model] = Route(handle, self._receiver, self._quarantine)
            self._infos[model] = info
            del self._missing[model]
            logger.info("model %s is ready", model)
            return

    async def _watch_nodes(self) -> None:
        """Listen beyond loopback as soon as the cluster has a second node."""
        while True:
            nodes = await asyncio.to_thread(ray.nodes)
            if sum(node["Alive"] for node in nodes) > 1:
                await self._receiver.listen(ray.util.get_node_ip_address())
                return
            await asyncio.sleep(WATCH_NODES_S)


def total(parts: Iterable[EngineStats]) -> EngineStats:
    """The statistics of several engines as one: sums, and the oldest heartbeat."""
    values: dict[str, Any] = asdict(EngineStats())
    for part in parts:
        for name, value in asdict(part).items():
            values[name] = max(values[name], value) if name == _OLDEST else values[name] + value
    return EngineStats(**values)
