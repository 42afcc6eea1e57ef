"""A cluster for the control plane that runs nothing, and a gateway that follows its snapshots."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from serve_app.config import ControlConfig, ModelConfig
from serve_app.control.endpoints.cluster import AppSeen, AppStatus, Offer, Room
from serve_app.control.endpoints.state import AppSpec
from serve_app.control.plane import ControlPlane
from serve_app.errors import Unavailable
from serve_app.types import Caller, ModelInfo, Scope
from serve_app.types.control import GatewayReport, Snapshot, WatchSnapshot
from tests.support.databases import open_database

OPERATOR: Final = Caller(key_id="ops", scopes=frozenset(Scope), salt="ops", user="ops")
CHAT: Final = ModelInfo(
    name="demo-chat",
    created=1,
    context_window=512,
    vocab_size=256,
    has_chat_template=True,
    has_fim=False,
    dtype="float32",
    device="cpu",
)


EMBEDDER: Final = dataclasses.replace(CHAT, has_chat_template=False, dimensions=64)


class FakeCluster:
    """Applications come up at once, unless `failing`, `broken` or `held` names their model."""

    def __init__(self, offers: tuple[Offer, ...] = (), room: Room | None = None) -> None:
        self.found = offers or (
            Offer(config=ModelConfig(name="demo-chat"), app="model-demo-chat", is_shared=True),
            Offer(config=ModelConfig(name="demo-chat", version="2")),
        )
        self.free = room or Room({"CPU": 16.0, "GPU": 0.0})
        self.seen: dict[str, AppSeen] = {}
        self.specs: dict[str, AppSpec] = {}
        self.routes: frozenset[str] | None = frozenset()
        self.memory: dict[str, int] = {}  # version of a model -> bytes of a replica
        self.failing: dict[str, str] = {}  # version of a model -> what the cluster says
        self.broken: set[str] = set()  # versions of models whose settings this program cannot read
        self.held: set[str] = set()  # versions of models that do not come up
        self.model = CHAT  # what every application serves
        self.is_away = False
        self.calls: list[str] = []

    async def apps(self) -> Mapping[str, AppSeen]:
        self._answer()
        return dict(self.seen)

    async def routed(self) -> frozenset[str] | None:
        self._answer()
        return self.routes

    async def deploy(self, spec: AppSpec) -> None:
        self._answer()
        version = str(spec.model.get("version", ""))
        if version in self.broken:
            raise ValueError("unknown field")
        self.calls.append(f"deploy {spec.name} {spec.min_replicas}-{spec.max_replicas}")
        self.specs[spec.name] = spec
        if version in self.failing:
            self.seen[spec.name] = AppSeen(AppStatus.FAILED, self.failing[version], spec.size)
        elif version in self.held:
            self.seen[spec.name] = AppSeen(AppStatus.COMING, "waits for a node", spec.size)
        else:
            self.seen[spec.name] = AppSeen(AppStatus.UP, "", spec.size)

    async def delete(self, app: str) -> None:
        self._answer()
        self.calls.append(f"delete {app}")
        self.seen.pop(app, None)

    async def info(self, app: str) -> ModelInfo:
        self._answer()
        return self.model

    async def offers(self) -> tuple[Offer, ...]:
        self._answer()
        return self.found

    async def room(self) -> Room:
        self._answer()
        return self.free

    def least_memory(self, config: ModelConfig) -> int | None:
        return self.memory.get(config.version)

    async def logs(self, app: str) -> str:
        self._answer()
        return f"log of {app}\n"

    def _answer(self) -> None:
        if self.is_away:
            raise Unavailable("the cluster does not answer; try again", retry_after_s=1.0)


class FakeGateway:
    """Follows the snapshots of a control plane and reports as a gateway does, with what it declares."""

    def __init__(self, plane: ControlPlane, cluster: FakeCluster, declared: dict[str, Any]) -> None:
        self._plane = plane
        self._cluster = cluster
        self.declared = declared
        self.snapshot = Snapshot(version=0)
        self.waiting: dict[str, tuple[str, ...]] = {}
        self.news = asyncio.Event()

    async def run(self) -> None:
        while True:
            await self.poll(wait_s=5.0)

    async def poll(self, wait_s: float = 0.0) -> None:
        """One poll, and what it brings taken."""
        command = WatchSnapshot(report=self.report(), after=self.snapshot.version, wait_s=wait_s)
        try:
            found = await self._plane.do(command, OPERATOR)
        except Unavailable:
            await asyncio.sleep(0.01)
            return
        if found.version != self.snapshot.version:
            self.snapshot = found
            self._cluster.routes = frozenset(
                entity["app"]
                for endpoint in self.endpoints.values()
                for entity in endpoint["served_entities"]
            )
            self.news.set()

    def report(self) -> GatewayReport:
        return GatewayReport(
            gateway="fake",
            declared=self.declared,
            in_force=self.snapshot.version,
            waiting=self.waiting,
            ready=("model-demo-chat", *(self._cluster.routes or ())),
        )

    @property
    def endpoints(self) -> dict[str, dict[str, Any]]:
        """Those of the newest snapshot, by name."""
        return {name: json.loads(raw) for name, raw in self.snapshot.endpoints.items()}


@asynccontextmanager
async def plane_over(
    folder: Path,
    cluster: FakeCluster,
    config: ControlConfig | None = None,
    declared: dict[str, Any] | None = None,
    guardrails_model: str | None = None,
) -> AsyncIterator[tuple[ControlPlane, FakeGateway]]:
    """A control plane that works, on SQLite in `folder`, and a gateway that follows it."""
    database = open_database(f"sqlite:///{folder / 'control.db'}")
    plane = ControlPlane(database, cluster, config or ControlConfig(), guardrails_model=guardrails_model)
    declares = {"endpoints": [{"name": "demo-chat"}]} if declared is None else declared
    gateway = FakeGateway(plane, cluster, declares)
    plane.start()
    following = asyncio.ensure_future(gateway.run())
    try:
        async with asyncio.timeout(60):
            await gateway.news.wait()
        yield plane, gateway
    finally:
        following.cancel()
        await plane.close()
