"""The start of Ray: once more where its node was late, and without what the first one left behind."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import psutil
import pytest
import ray

from serve_app.deployments.launcher.ray_cluster import start_ray

LATE = "The current node timed out during startup."
# A child with a child, as Ray's node manager has agents. The first one says when both are there.
NODE = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("up", flush=True)
sys.stdin.read()
"""


def start_node() -> list[psutil.Process]:
    """A process and the one that it started."""
    node = subprocess.Popen(
        [sys.executable, "-c", NODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert node.stdout is not None
    assert node.stdout.readline() == "up\n"
    return [psutil.Process(node.pid), *psutil.Process(node.pid).children()]


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(("message", "is_late"), [(LATE, True), ("no space left", False)])
def test_a_node_that_did_not_come_up_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch, message: str, is_late: bool
) -> None:
    others = start_node()
    left: list[psutil.Process] = []

    def init(**options: Any) -> str:
        if left:
            return "up"
        left.extend(start_node())
        raise RuntimeError(message)

    monkeypatch.setattr(ray, "init", init)
    try:
        if is_late:
            assert start_ray() == "up"
        else:
            with pytest.raises(RuntimeError, match=message):
                start_ray()
        assert len(left) == 2
        assert not any(map(is_alive, left))
        assert all(map(is_alive, others))
    finally:
        for process in others:
            process.kill()
        psutil.wait_procs(others)
