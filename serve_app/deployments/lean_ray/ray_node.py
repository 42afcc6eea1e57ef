"""The node of a private Ray cluster, without unused processes, and with workers from the template.

`ray.init` has no options for any of this, so our node class takes the place of Ray's during the call.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Final

import ray._private.node
import ray._private.utils
from ray._private.node import Node

from serve_app.deployments.lean_ray import worker_entry

METRICS: Final = "RAY_enable_metrics_collection"  # Ray's own variable


class LeanNode(Node):  # type: ignore[misc]  # Ray has no types here
    """A node without a dashboard server or an autoscaler, since a cluster of one machine needs neither.

    Its dashboard agent is the minimal one, unless the operator wants Ray's own metrics.
    """

    def start_monitor(self) -> None:
        """Does not start the autoscaler: it starts and stops machines, and there is only one machine."""

    def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
        """Leaves out the dashboard's process, which Ray starts even without a dashboard, to report usage."""
        self._webui_url = ""

    def start_raylet(self, *arguments: Any, **options: Any) -> None:
        if worker_entry.SOCKET in os.environ:
            os.environ.setdefault(worker_entry.ORDINARY, self._ray_params.setup_worker_path)
            self._ray_params.setup_worker_path = os.path.abspath(worker_entry.__file__)
        with contextlib.nullcontext() if os.environ.get(METRICS) == "1" else _small_agent():
            super().start_raylet(*arguments, **options)


@contextlib.contextmanager
def _small_agent() -> Iterator[None]:
    """Within the block, the node manager starts the agent of a Ray installed without the dashboard.

    The other parts of the agent answer the dashboard's server, which does not run, and collect Ray's metrics.
    """
    found = ray._private.utils.get_dashboard_dependency_error
    ray._private.utils.get_dashboard_dependency_error = lambda: ImportError("there is no dashboard")
    try:
        yield
    finally:
        ray._private.utils.get_dashboard_dependency_error = found


@contextlib.contextmanager
def lean() -> Iterator[None]:
    """Within the block, `ray.init` starts a `LeanNode`."""
    ray._private.node.Node = LeanNode
    try:
        yield
    finally:
        ray._private.node.Node = Node
