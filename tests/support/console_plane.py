"""A gateway with a control plane in this process: endpoints, keys and usage for the console."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serve_app.api.services import Services
from serve_app.control.ledger.tables import Usage
from serve_app.control.plane import ControlPlane
from serve_app.types.control import Snapshot
from tests.support.databases import open_database
from tests.support.fake_cluster import FakeCluster, FakeGateway, plane_over
from tests.support.fakes_backend import FakeBackend
from tests.support.gateway import fake_app, served
from tests.support.run_time_keys import take


@dataclass(frozen=True, kw_only=True)
class PlaneServer:
    """A server on loopback whose endpoints come up on a cluster that runs nothing."""

    url: str
    backend: FakeBackend
    cluster: FakeCluster
    plane: ControlPlane
    folder: Path

    async def add(self, *rows: Usage) -> None:
        """Put requests into the ledger."""
        database = open_database(f"sqlite:///{self.folder / 'control.db'}")
        try:
            await database.run(lambda session: session.add_all(rows))
        finally:
            database.close()


@asynccontextmanager
async def plane_server(folder: Path, keys: str, **options: Any) -> AsyncIterator[PlaneServer]:
    """`keys` are the lines of the key file."""
    cluster, backend = FakeCluster(), FakeBackend()
    async with plane_over(folder, cluster) as (plane, gateway):
        app = fake_app(backend, keys, management=plane, at_run_time=True, **options)
        following = asyncio.ensure_future(_follow(app.state.services, gateway))
        try:
            async with served(app) as (host, port):
                yield PlaneServer(
                    url=f"http://{host}:{port}", backend=backend, cluster=cluster, plane=plane, folder=folder
                )
        finally:
            following.cancel()


async def _follow(services: Services, gateway: FakeGateway) -> None:
    """Give every snapshot of the control plane to the gateway that answers."""
    taken: Snapshot | None = None
    while True:
        if gateway.snapshot is not taken:
            taken = gateway.snapshot
            take(services, taken)
        gateway.news.clear()
        await gateway.news.wait()
