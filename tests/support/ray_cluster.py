"""One Ray cluster for all tests that need one: started on first use, ended with the session.

It runs as `make serve` does (HAProxy in front, direct ingress, token), on ports of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest_asyncio

from serve_app.api.protocol.family import Family
from serve_app.config.secret_file import secret_file
from serve_app.deployments import environment
from serve_app.deployments.environment import free_port as free_port
from serve_app.deployments.launcher.ray_cluster import start_ray
from serve_app.loopback import LOOPBACK
from serve_app.types import EngineStats

ROOT = Path(__file__).resolve().parents[2]
HEARD_S: Final = 60.0  # until this process has heard of a replica that runs


@dataclass(frozen=True)
class Cluster:
    """Where the cluster answers HTTP, and where other drivers find it."""

    port: int
    gcs_address: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def _configure() -> None:
    """Set Ray's environment. Ray reads it on import, so before any test module is imported."""
    folder = environment.private_folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    environment.apply(
        environment.COMMON
        | environment.haproxy(
            folder, stats_port=free_port(), metrics_port=free_port(), fallback_port=free_port()
        )
        | {
            "RAY_AUTH_TOKEN_PATH": str(secret_file(folder / "token")),
            "RAY_SERVE_WORKER_PROXY_HTTP_PORT": str(free_port()),
            "XDG_STATE_HOME": str(folder / "state"),  # journals and databases of tests, not this user's
            "OMP_NUM_THREADS": "1",
            "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.2",  # tests start and change a lot, and wait for it
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        }
    )
    environment.listen(folder, LOOPBACK, Family.OPENAI)


_configure()


# On the session's event loop, so that the loop outlives the handles that Serve shuts down.
@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ray_cluster() -> AsyncIterator[Cluster]:
    """A one-node cluster with Serve, and nothing deployed."""
    import ray
    from ray import serve

    port = free_port()
    context = await asyncio.to_thread(_start_ray)
    try:
        await asyncio.to_thread(_start_serve, port)
        yield Cluster(port, context.address_info["gcs_address"])
    finally:
        await asyncio.to_thread(serve.shutdown)
        await asyncio.to_thread(ray.shutdown)


async def engine_stats(app: str) -> EngineStats:
    """The engine's numbers in one replica of `app`, by its own account.

    The event loop of tests rests between them, so the handle is a `driver_handle`. Serve tells this
    process of a deployment a moment after it runs; until then a handle knows the one that was deleted.
    """
    from serve_app.deployments.gateway.presence import choices
    from serve_app.deployments.rollout.cluster import driver_handle

    handle = await asyncio.to_thread(driver_handle, app)
    async with asyncio.timeout(HEARD_S):
        while choices(handle) == 0:
            await asyncio.sleep(0.05)
    return msgspec.msgpack.decode(await handle.stats.remote(), type=EngineStats)


def _start_ray() -> Any:
    return start_ray(
        num_cpus=16,  # logical: replicas of tests mostly wait
        object_store_memory=100 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
    )


def _start_serve(port: int) -> None:
    """Start Serve; once more where its proxy was not up within the minute that Serve gives it."""
    import ray
    from ray import serve

    options = {"host": "127.0.0.1", "port": port}
    try:
        serve.start(http_options=options)
    except (ray.exceptions.RayError, TimeoutError):
        serve.shutdown()
        serve.start(http_options=options)
