"""The whole service but for Ray and models, in this process: gateway, control plane, database, ledger.

Endpoints and keys that are made are in force, and what requests used reaches the ledger, as in a cluster.
Applications come up in a `FakeCluster`, and a `FakeBackend` answers for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI

from serve_app.accounts.accounts import Accounts
from serve_app.accounts.inference_table import InferenceTables
from serve_app.accounts.journal import Journal
from serve_app.api.directory import Directory
from serve_app.api.services import Services
from serve_app.config import ControlConfig, ModelConfig
from serve_app.control.endpoints.cluster import AppStatus, Offer
from serve_app.control.plane import ControlPlane
from serve_app.deployments.gateway.control.live import RemoteLive
from serve_app.deployments.gateway.control.shipper import Shipper
from serve_app.endpoints.beside import Beside
from serve_app.endpoints.catalogue import Catalogue, parse_catalogue
from serve_app.endpoints.endpoint import Endpoint
from serve_app.errors import Unavailable
from serve_app.types import Caller, ModelInfo
from serve_app.types.control import Command, GatewayReport, ReplyT, Snapshot, WatchSnapshot
from tests.support.databases import open_database
from tests.support.fake_cluster import OPERATOR, FakeCluster
from tests.support.fakes_backend import FakeBackend, model_info
from tests.support.gateway import fake_app

OFFERS: Final = (
    Offer(config=ModelConfig(name="demo"), app="model-demo", is_shared=True),
    Offer(config=ModelConfig(name="demo", version="2")),
)
DECLARED: Final = {
    "endpoints": [
        {"name": "demo"},
        {"name": "org/other"},
        {
            "name": "watched",
            "served_entities": [{"model": "demo"}],
        },  # nobody asks it: its figures are a test's
    ]
}
SHIPPED_EVERY_S: Final = 0.05


@dataclass
class ClusterBackend(FakeBackend):
    """A `FakeBackend` that also answers for every application which runs in `cluster`."""

    cluster: FakeCluster = field(default_factory=lambda: FakeCluster(OFFERS))

    def info(self, app: str) -> ModelInfo | None:
        seen = self.cluster.seen.get(app)
        runs = seen is not None and seen.status is AppStatus.UP
        return super().info(app) or (model_info(version="2") if runs else None)


@dataclass(frozen=True)
class WholeService:
    """The parts that a test may set or look at."""

    app: FastAPI
    backend: ClusterBackend
    plane: ControlPlane

    @property
    def cluster(self) -> FakeCluster:
        return self.backend.cluster


@asynccontextmanager
async def whole_service(
    folder: Path, keys: str = "", guardrails_model: str | None = None
) -> AsyncIterator[WholeService]:
    """`folder`: of the database and the journal. `keys`: lines of keys that no control plane made."""
    backend = ClusterBackend()
    database = open_database(f"sqlite:///{folder / 'control.db'}")
    plane = ControlPlane(database, backend.cluster, ControlConfig(), guardrails_model=guardrails_model)
    journal = Journal(folder / "usage")
    shipper = Shipper(folder / "usage", plane, keep_days=30, every_s=SHIPPED_EVERY_S)
    directory = Directory(parse_catalogue(DECLARED))
    tables = InferenceTables(folder / "tables", retention_days=30, flush_s=SHIPPED_EVERY_S)
    parts: dict[str, Any] = {"management": plane, "at_run_time": True, "payloads": tables}
    app = fake_app(backend, keys, directory, journal, **parts, guardrails_model=guardrails_model)
    live = app.state.services.live
    live.join(RemoteLive("whole", live.pulse, _Reached(plane)))  # type: ignore[arg-type]  # what it needs of it
    plane.start()
    shipper.start()
    first = asyncio.Event()
    following = asyncio.ensure_future(_follow(plane, app.state.services, backend, first))
    try:
        async with asyncio.timeout(60):
            await first.wait()
        yield WholeService(app, backend, plane)
    finally:
        following.cancel()
        live.pulse.close()
        await shipper.close()
        await plane.close()
        journal.close()
        await asyncio.to_thread(tables.close)


@dataclass(frozen=True)
class _Reached:
    """The control plane as `RemoteLive` reaches it; never away."""

    plane: ControlPlane
    is_connected: bool = True

    @property
    def feed(self) -> _Reached:
        return self

    async def call(self, command: Command[ReplyT], caller: Caller, within_s: float) -> ReplyT:
        return await self.plane.do(command, caller)


async def _follow(
    plane: ControlPlane, services: Services, backend: ClusterBackend, first: asyncio.Event
) -> None:
    """What a gateway does: report, and take every snapshot."""
    declared = parse_catalogue(DECLARED)
    version = 0
    while True:
        apps = {entity.app for endpoint in services.directory for entity in endpoint.served_entities}
        report = GatewayReport(
            gateway="whole",
            declared=DECLARED,
            in_force=version,
            ready=tuple(app for app in apps if backend.is_ready(app)),
        )
        try:
            snapshot = await plane.do(WatchSnapshot(report=report, after=version, wait_s=5.0), OPERATOR)
        except Unavailable:  # the database opens
            await asyncio.sleep(0.01)
            continue
        if snapshot.version != version:
            version = snapshot.version
            _take(snapshot, declared, services, backend)
            first.set()


def _take(snapshot: Snapshot, declared: Catalogue, services: Services, backend: ClusterBackend) -> None:
    both = Beside()
    both.declare(declared.endpoints)
    both.change({name: Endpoint.model_validate_json(raw) for name, raw in snapshot.endpoints.items()})
    services.directory.run_time = both.run_time
    services.directory.take(both.endpoints.values())
    services.directory.permit(snapshot.grants)
    services.directory.expect(snapshot.unready)
    if isinstance(services.accounts, Accounts):
        services.accounts.take(snapshot)
    made = [both.endpoints[name] for name in both.run_time]
    backend.cluster.routes = frozenset(e.app for endpoint in made for e in endpoint.served_entities)
