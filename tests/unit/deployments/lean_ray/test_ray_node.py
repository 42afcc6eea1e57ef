"""The places of Ray that a node of ours takes: they are there, and as they were."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest
import ray
from ray._private import services, utils
from ray._private.node import Node
from ray._private.parameter import RayParams

from serve_app.deployments.lean_ray import worker_entry
from serve_app.deployments.lean_ray.ray_node import METRICS, LeanNode, lean


def test_ray_starts_what_we_leave_out_by_these_methods() -> None:
    text = inspect.getsource(Node.start_head_processes)
    assert "self.start_monitor()" in text
    assert "self.start_api_server(" in text
    assert "self._ray_params.setup_worker_path" in inspect.getsource(Node.start_raylet)
    ours, rays = (list(inspect.signature(each.start_api_server).parameters) for each in (LeanNode, Node))
    assert ours == rays


def test_ray_makes_our_node_inside_alone() -> None:
    assert "ray._private.node.Node(" in inspect.getsource(ray.init)
    with lean():
        assert ray._private.node.Node is LeanNode
    assert ray._private.node.Node is Node


@pytest.mark.parametrize("has_template", [True, False])
def test_workers_start_by_our_program_where_there_is_a_template(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_template: bool
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(Node, "start_raylet", lambda self, *found: started.append(found))
    for name in (worker_entry.ORDINARY, worker_entry.SOCKET):
        monkeypatch.setenv(name, "")  # so that what the call sets is undone
        monkeypatch.delenv(name)
    if has_template:
        monkeypatch.setenv(worker_entry.SOCKET, str(tmp_path / "workers.sock"))
    node = object.__new__(LeanNode)
    node._ray_params = RayParams(setup_worker_path="/ray/setup_worker.py")
    node.start_raylet("plasma", "fallback", 1)
    assert started == [("plasma", "fallback", 1)]
    path = Path(node._ray_params.setup_worker_path)
    if has_template:
        assert path.samefile(worker_entry.__file__)
        assert os.environ[worker_entry.ORDINARY] == "/ray/setup_worker.py"
    else:
        assert str(path) == "/ray/setup_worker.py"


@pytest.mark.parametrize("wants_metrics", [True, False])
def test_the_agent_is_the_small_one_unless_the_operator_wants_metrics_of_ray(
    monkeypatch: pytest.MonkeyPatch, wants_metrics: bool
) -> None:
    assert "get_dashboard_dependency_error() is not None" in inspect.getsource(services.start_raylet)
    errors: list[ImportError | None] = []
    found = utils.get_dashboard_dependency_error
    monkeypatch.setattr(
        Node, "start_raylet", lambda self: errors.append(utils.get_dashboard_dependency_error())
    )
    monkeypatch.setenv(METRICS, "1" if wants_metrics else "0")
    object.__new__(LeanNode).start_raylet()
    assert [error is None for error in errors] == [wants_metrics]
    assert utils.get_dashboard_dependency_error is found
