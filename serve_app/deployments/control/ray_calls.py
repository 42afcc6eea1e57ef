"""What the control plane needs of Ray Serve that has no public form, one function for each. All block.

Written against Ray 2.60. tests/control/test_ray_calls.py holds each to what it promises.
"""

from __future__ import annotations

from pathlib import Path

import ray
from ray import serve
from ray.serve import Application, Deployment

from serve_app.deployments.serve_details import details as details


def pinned(deployment: Deployment, version: str) -> Deployment:
    """The deployment with a code version of ours.

    Serve draws a new version at each `serve.run`, and replaces all replicas. With the same one it changes the
    number of replicas, limits and `user_config` in place.
    """
    return deployment.options(_internal=True, version=version)


def run_aside(name: str, app: Application) -> None:
    """Start or change an application without a route, and return before it is up."""
    # A developer API; `serve.run` always waits.
    serve.run_many(
        [serve.RunTarget(app, name=name, route_prefix=None)],
        wait_for_ingress_deployment_creation=False,
        wait_for_applications_running=False,
    )


def delete_aside(name: str) -> None:
    """Let an application go, and return before it is gone. Nothing happens where there is none."""
    serve.delete(name, _blocking=False)


def logs_folder() -> Path:
    """Where Ray writes the logs of this node's processes."""
    return Path(ray._private.worker.global_worker.node.get_logs_dir_path())
