"""The switch: with it off, no part of Ray is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray._private.node

from serve_app.deployments import lean_ray
from serve_app.deployments.lean_ray import worker_template
from serve_app.deployments.lean_ray.ray_node import LeanNode


@pytest.mark.parametrize(("value", "is_on"), [(None, True), ("on", True), ("off", False), ("OFF", False)])
def test_one_switch_rules_the_node_and_the_template(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str | None, is_on: bool
) -> None:
    started: list[Path] = []
    monkeypatch.setattr(worker_template, "start", started.append)
    monkeypatch.delenv(lean_ray.SWITCH, raising=False)
    if value is not None:
        monkeypatch.setenv(lean_ray.SWITCH, value)
    before = ray._private.node.Node
    with lean_ray.lean_node():
        assert ray._private.node.Node is (LeanNode if is_on else before)
    assert ray._private.node.Node is before
    lean_ray.start_template(tmp_path)
    assert started == [tmp_path] * is_on
