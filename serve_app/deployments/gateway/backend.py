"""The api layer's backend on top of Serve: the models, and how to reach them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

import ray
from ray.serve.handle import DeploymentHandle

from serve_app.channel.receiver import Receiver
from serve_app.deployments.gateway.migrations import Migrations
from serve_app.deployments.gateway.poison_requests import PoisonRequests
from serve_app.deployments.gateway.remote import RemoteModel
from serve_app.deployments.gateway.route import Route
from serve_app.deployments.gateway.routed_stream import PATIENCE_S, RoutedStream
from serve_app.endpoints.endpoint import Endpoint, ServedEntity
from serve_app.errors import Unavailable
from serve_app.types import EngineStats, GenerateRequest, ModelInfo, Question
from serve_app.types.question import ReplyT

WATCH_NODES_S: Final = 2.0
RECOVERY_S: Final = 0.1  # between checks whether a model is back
FORGET_S: Final = 3_600.0  # the longest life of a request, which may still use a model of a former catalogue

EntityKey = tuple[str, str, str]  # an application, and the model and version that it must serve

_OLDEST: Final = "heartbeat_age_s"  # the one statistic of which the largest counts, not the sum


class ServeBackend:
    """The models behind this gateway, by the name of their application."""

    def __init__(self, receiver: Receiver, patience_s: float = PATIENCE_S) -> None:
        """`patience_s`: how long an answer whose replica was lost waits for another replica."""
        self._receiver = receiver
        self._patience_s = patience_s
        self._migrations = Migrations()
        self._poison_requests = PoisonRequests()
        self._models: dict[EntityKey, RemoteModel] = {}
        self._watched: Counter[EntityKey] = Counter()  # how many endpoints name each of `_models`
        self._by_app: dict[str, RemoteModel] = {}  # those that requests go to
        receiver.on_silence = self._suspect
        self._watching = asyncio.ensure_future(self._watch_nodes())

    def watch(self, endpoint: Endpoint) -> None:
        """Look for the models of `endpoint` until `unwatch` has been called as often as `watch`."""
        for entity in endpoint.served_entities:
            key = _key(entity)
            if key not in self._models:
                self._models[key] = RemoteModel(entity, self._new_route)
            self._watched[key] += 1

    def serve(self, endpoint: Endpoint) -> None:
        """Send requests to the models of `endpoint`, which must be watched already."""
        for entity in endpoint.served_entities:
            self._by_app[entity.app] = self._models[_key(entity)]

    def unwatch(self, endpoint: Endpoint) -> None:
        """Undo one `watch` of `endpoint`, which is gone or has changed. Requests for a model that no endpoint
        names any more still reach it."""
        for entity in endpoint.served_entities:
            key = _key(entity)
            self._watched[key] -= 1
            if not self._watched[key]:
                del self._watched[key]
                model = self._models.pop(key)
                model.retire()
                asyncio.get_running_loop().call_later(FORGET_S, self._forget, entity.app, model)

    def watches(self, entity: ServedEntity) -> bool:
        """Whether `entity` is named by an endpoint, in use or starting."""
        return _key(entity) in self._models

    def answers(self, entity: ServedEntity) -> bool:
        """Whether the model of `entity`, in use or starting, can answer."""
        model = self._models.get(_key(entity))
        return model is not None and model.missing is None

    def routes(self) -> list[str]:
        """The applications that this gateway's requests go to, or wait for."""
        named = set(self._models.values())
        return [app for app, model in self._by_app.items() if model in named or model.is_waited_for]

    async def looked(self, within_s: float) -> None:
        """Wait until every model has been checked, but at most `within_s`."""
        waits = [asyncio.ensure_future(model.looked.wait()) for model in self._models.values()]
        if waits:
            _, late = await asyncio.wait(waits, timeout=within_s)
            for wait in late:
                wait.cancel()

    def is_ready(self, app: str) -> bool:
        return self.missing(app) is None

    def ready(self) -> tuple[str, ...]:
        """The applications that endpoints name and that can answer."""
        return tuple(app for app in self._named() if self.is_ready(app))

    def missing(self, app: str) -> str | None:
        model = self._by_app.get(app)
        return model.missing if model is not None else "not served"

    def lacks(self, app: str) -> str | None:
        model = self._by_app.get(app)
        return model.lacks if model is not None else None

    async def recovery(self, apps: Sequence[str], within_s: float) -> bool:
        models = [self._by_app[app] for app in apps if app in self._by_app]
        until = asyncio.get_running_loop().time() + within_s
        if any(model.missing is None for model in models):
            return False
        while any(model.is_restarting for model in models) and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(RECOVERY_S)
            if any(model.missing is None for model in models):
                return True
        return False

    def info(self, app: str) -> ModelInfo | None:
        model = self._by_app.get(app)
        return None if model is None else model.info

    async def model(self, app: str) -> ModelInfo:
        """The facts about a model. Raises Unavailable while it loads."""
        return await self._model(app).wake()

    def generate(self, request: GenerateRequest) -> RoutedStream:
        """Send `request`; see `Route.generate`. Same errors as `model`."""
        return self._route(request.model).generate(request)

    async def ask(self, app: str, question: Question[ReplyT]) -> ReplyT:
        """The answer to `question`; see `Route.ask`. Same errors as `model`."""
        return await self._route(app).ask(question)

    def stats(self) -> dict[str, EngineStats]:
        """For each application, the newest statistics of the replicas that serve this gateway, summed.

        Counters include replicas that have left.
        """
        link = self._receiver
        return {
            app: total([*link.stats(app), link.departed(app)]) for app in self._named() if self.is_ready(app)
        }

    def replicas(self) -> dict[str, dict[str, EngineStats]]:
        """Like `stats`, but for each replica, by its id."""
        return {app: self._receiver.by_replica(app) for app in self._named()}

    def num_replicas(self, app: str) -> int:
        """The number of an application's replicas to which Serve's router may send a request."""
        model = self._by_app.get(app)
        return 0 if model is None else model.num_replicas

    def migrations(self) -> dict[tuple[str, str], int]:
        return self._migrations.counts

    async def close(self) -> None:
        self._watching.cancel()
        for model in (*self._models.values(), *self._by_app.values()):
            model.close()
        await self._receiver.close()

    def _new_route(self, handle: DeploymentHandle, model: RemoteModel) -> Route:
        return Route(
            handle,
            self._receiver,
            self._poison_requests,
            lambda: model.missing is None,
            may_return=lambda: model.is_restarting,
            patience_s=self._patience_s,
            migrations=self._migrations,
            on_silence=model.suspect,
        )

    def _suspect(self, app: str) -> None:
        """Report to the model of the application that a connected replica has fallen silent."""
        for model in {self._by_app.get(app), *(m for (name, *_), m in self._models.items() if name == app)}:
            if model is not None:
                model.suspect()

    def _model(self, app: str) -> RemoteModel:
        model = self._by_app.get(app)
        if model is None:  # the catalogue changed while the request was on its way
            raise Unavailable("the model is no longer served; try again", retry_after_s=1.0)
        return model

    def _route(self, app: str) -> Route:
        route = self._model(app).route
        if route is None:
            raise Unavailable("the model is loading; try again", retry_after_s=2.0)
        return route

    def _named(self) -> list[str]:
        return list(dict.fromkeys(app for app, _, _ in self._models if app in self._by_app))

    def _forget(self, app: str, model: RemoteModel) -> None:
        if self._by_app.get(app) is model:
            del self._by_app[app]

    async def _watch_nodes(self) -> None:
        """Listen on an address beyond loopback as soon as the cluster has a second node."""
        while True:
            nodes = await asyncio.to_thread(ray.nodes)
            if sum(node["Alive"] for node in nodes) > 1:
                await self._receiver.listen(ray.util.get_node_ip_address())
                return
            await asyncio.sleep(WATCH_NODES_S)


def _key(entity: ServedEntity) -> EntityKey:
    return entity.app, entity.model, entity.version


def total(parts: Iterable[EngineStats]) -> EngineStats:
    """The statistics of several engines as one: sums, and the oldest heartbeat."""
    values: dict[str, Any] = asdict(EngineStats())
    for part in parts:
        for name, value in asdict(part).items():
            values[name] = max(values[name], value) if name == _OLDEST else values[name] + value
    return EngineStats(**values)
