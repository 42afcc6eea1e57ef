"""Calls of Ray Serve that the control plane needs, but that have no public form. All block.

Written against Ray 2.60. tests/control/test_ray_calls.py checks that each does what it promises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve import Application, Deployment
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

logger = logging.getLogger(__name__)

T = TypeVar("T")


def pinned(deployment: Deployment, version: str) -> Deployment:
    """The deployment, with a code version that we choose.

    By default, Serve chooses a new random version at each `serve.run`, and so replaces all replicas. If the
    version stays the same, Serve changes the number of replicas, limits and `user_config` in place.
    """
    return deployment.options(_internal=True, version=version)


def run_aside(name: str, app: Application) -> None:
    """Start or change an application without a route; returns before it is up."""
    # A developer API; `serve.run` always waits.
    serve.run_many(
        [serve.RunTarget(app, name=name, route_prefix=None)],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


def delete_aside(name: str) -> None:
    """Delete an application; returns before it is gone. Does nothing if there is no such application."""
    serve.delete(name, _blocking=False)


def logs_folder() -> Path:
    """The folder of the logs of this node's processes."""
    return Path(ray._private.worker.global_worker.node.get_logs_dir_path())


def own_node() -> str:
    """Ray's id of this node."""
    return str(ray.get_runtime_context().get_node_id())


def on_nodes(calls: Mapping[str, Callable[[], T]], wait_s: float) -> dict[str, T | None]:
    """Run each function, all at once, on the node whose id is the function's key. None: no answer in time.

    Functions are sent by name, so every node must have this package.
    """
    task = ray.remote(num_cpus=0, max_retries=0)(_call)
    running = {
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(call): node
        for node, call in calls.items()
    }
    done, late = ray.wait([*running], num_returns=len(running), timeout=wait_s) if running else ([], [])
    for reference in late:
        ray.cancel(reference, force=True)
    found: dict[str, T | None] = dict.fromkeys(calls)
    for reference in done:
        try:
            found[running[reference]] = ray.get(reference)
        except RayError as error:  # the node is gone, or it went while it read
            logger.warning("node %s does not answer: %s", running[reference], type(error).__name__)
    return found


def _call(work: Callable[[], T]) -> T:
    return work()
