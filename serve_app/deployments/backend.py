"""The api layer's backend over Serve: which models there are, and how to reach them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import asdict
from typing import Any, Final

import ray

from serve_app.channel.receiver import Receiver
from serve_app.deployments.quarantine import Quarantine
from serve_app.deployments.remote import RemoteModel
from serve_app.deployments.route import Route
from serve_app.endpoints.catalogue import Catalogue
from serve_app.errors import Unavailable
from serve_app.types import EngineStats, GenerateRequest, ModelInfo, Question, TokenDelta
from serve_app.types.question import ReplyT

LOOPBACK: Final = "127.0.0.1"
WATCH_NODES_S: Final = 2.0

_OLDEST: Final = "heartbeat_age_s"  # the one statistic that is not a sum


class ServeBackend:
    """The models behind this gateway, by the name of their application."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._quarantine = Quarantine()
        self._models: dict[str, RemoteModel] = {}
        self._watching = asyncio.ensure_future(self._watch_nodes())

    def serve(self, catalogue: Catalogue) -> None:
        """Look for what `catalogue` names, and forget what it does not. Requests under way go on."""
        entities = {e.app: e for endpoint in catalogue.endpoints for e in endpoint.served_entities}
        for app, model in list(self._models.items()):
            if app not in entities or not model.serves(entities[app]):
                self._models.pop(app).close()
        for app, entity in entities.items():
            if app not in self._models:
                self._models[app] = RemoteModel(entity, self._receiver, self._quarantine)

    def is_ready(self, app: str) -> bool:
        model = self._models.get(app)
        return model is not None and model.missing is None

    def info(self, app: str) -> ModelInfo | None:
        model = self._models.get(app)
        return None if model is None else model.info

    async def model(self, app: str) -> ModelInfo:
        """What is known of a model. Raises Unavailable while it loads."""
        return await self._model(app).wake()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[TokenDelta], None]:
        """The deltas of `request`; see `Route.generate`. Raises as `model` does."""
        route = self._route(request.model)
        async with aclosing(route.generate(request)) as steps:
            async for deltas in steps:
                yield deltas

    async def ask(self, app: str, question: Question[ReplyT]) -> ReplyT:
        """The answer to `question`; see `Route.ask`. Raises as `model` does."""
        return await self._route(app).ask(question)

    async def not_ready(self) -> list[str]:
        """The applications that cannot answer yet, and why."""
        return [f"{app}: {model.missing}" for app, model in self._models.items() if model.missing]

    def stats(self) -> dict[str, EngineStats]:
        """For each application, the newest statistics of the replicas that serve this gateway, summed."""
        return {app: total(self._receiver.stats(app)) for app in self._models if self.is_ready(app)}

    async def close(self) -> None:
        self._watching.cancel()
        for model in self._models.values():
            model.close()
        await self._receiver.close()

    def _model(self, app: str) -> RemoteModel:
        model = self._models.get(app)
        if model is None:  # the catalogue changed while the request was on its way
            raise Unavailable("the model is no longer served; try again", retry_after_s=1.0)
        return model

    def _route(self, app: str) -> Route:
        route = self._model(app).route
        if route is None:
            raise Unavailable("the model is loading; try again", retry_after_s=2.0)
        return route

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
