"""What the control plane relies on in Ray Serve beyond its public functions. A new Ray may break it."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest
from ray import serve

from serve_app.deployments.control import ray_calls
from serve_app.deployments.serve_details import details
from tests.support.ray_cluster import Cluster

pytestmark = [pytest.mark.ray, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

APP = "contract"
WAIT_S = 60.0


class Told:
    """Its process, and the last `user_config`."""

    def __init__(self) -> None:
        self.config: Any = None

    def reconfigure(self, config: Any) -> None:
        self.config = config

    def tell(self) -> tuple[int, Any]:
        return os.getpid(), self.config


async def test_a_pinned_version_changes_in_place(ray_cluster: Cluster) -> None:
    await asyncio.to_thread(_changes_in_place)


def _changes_in_place() -> None:
    _run("v1", num_replicas=1, user_config={"word": "a"})
    pid, told = _tell()
    assert told == {"word": "a"}
    _run("v1", num_replicas=1, user_config={"word": "b"})
    _until(lambda: _tell() == (pid, {"word": "b"}))
    _run("v2", num_replicas=1, user_config={"word": "b"})
    _until(lambda: _tell()[0] != pid)
    config = details()[APP]["deployments"]["Told"]["deployment_config"]
    assert config["num_replicas"] == 1
    ray_calls.delete_aside(APP)
    ray_calls.delete_aside("there-is-no-such-application")
    _until(lambda: APP not in details())
    assert any(ray_calls.logs_folder().iterdir())


def _run(version: str, **options: Any) -> None:
    deployment = serve.deployment(Told).options(ray_actor_options={"num_cpus": 0}, **options)
    ray_calls.run_aside(APP, ray_calls.pinned(deployment, version).bind())
    _until(lambda: details().get(APP, {}).get("status") == "RUNNING")


def _tell() -> tuple[int, Any]:
    handle = serve.get_app_handle(APP)
    if not handle.is_initialized:
        handle._init(_run_router_in_separate_loop=True)
    found: tuple[int, Any] = handle.tell.remote().result(timeout_s=WAIT_S)
    return found


def _until(holds: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
