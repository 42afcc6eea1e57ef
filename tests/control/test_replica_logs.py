"""The newest lines of replicas' logs, from whatever node they are on."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from serve_app.deployments.control import log_lines, ray_calls
from tests.support.ray_cluster import ROOT, Cluster

NO_NODE = "ab" * 28  # Ray's ids of nodes have 28 bytes
WAIT_S = 60.0

ray_test = pytest.mark.ray
shared_loop = pytest.mark.asyncio(loop_scope="session")


def replica(name: str, node: str, file: str) -> dict[str, Any]:
    return {"replica_id": name, "node_id": node, "node_ip": "10.0.0.1", "log_file_path": f"/serve/{file}"}


@ray_test
@shared_loop
@pytest.mark.timeout(200)
async def test_a_function_runs_on_the_node_that_is_named(ray_cluster: Cluster) -> None:
    here = ray_calls.own_node()
    calls = {here: partial(os.getpid), NO_NODE: partial(os.getpid)}
    found = await asyncio.to_thread(ray_calls.on_nodes, calls, WAIT_S)
    assert found[NO_NODE] is None
    assert found[here] not in (None, os.getpid())
    assert ray_calls.on_nodes({}, WAIT_S) == {}


def test_each_replica_has_a_chapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def on_nodes(calls: dict[str, Any], wait_s: float) -> dict[str, Any]:
        asked.extend(calls)
        return {node: call() if node == "far" else None for node, call in calls.items()}

    monkeypatch.setattr(ray_calls, "own_node", lambda: "here")
    monkeypatch.setattr(ray_calls, "logs_folder", lambda: tmp_path)
    monkeypatch.setattr(ray_calls, "on_nodes", on_nodes)
    folder = tmp_path / "serve"
    folder.mkdir()
    (folder / "serve_app_a.log").write_text("near\n")
    (folder / "serve_app_b.log").write_text("far away\n")
    (folder / "serve_app_c.log").write_text("x" * log_lines.MAX_BYTES + "\nlast\n")
    text = log_lines.newest_lines(
        [
            replica("a", "here", "a.log"),
            replica("b", "far", "b.log"),
            replica("c", "here", "c.log"),
            replica("d", "gone", "d.log"),
            replica("e", "far", "e.log"),
        ]
    )
    assert sorted(asked) == ["far", "gone"]  # its own files need no Ray
    chapters = dict(part.split("\n", 1) for part in text.split("== replica ")[1:])
    assert chapters == {
        "a on node 10.0.0.1": "near\n",
        "b on node 10.0.0.1": "far away\n",
        "c on node 10.0.0.1": "last\n",  # whole lines only
        "d on node 10.0.0.1": "(this node does not answer)\n",
        "e on node 10.0.0.1": "(no lines; its file is serve/serve_app_e.log)\n",
    }


@pytest.mark.full
@ray_test
@pytest.mark.timeout(300)
def test_lines_of_another_node(tmp_path: Path) -> None:
    # As from a shell: none of what this process set for a cluster of its own.
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SERVE_APP_"))
    }
    folder = tempfile.mkdtemp(prefix="sa-", dir="/tmp")  # short: Ray puts sockets into it
    try:
        subprocess.run(
            [sys.executable, "-m", "tests.control.two_nodes"],
            env=environ | {"RAY_TMPDIR": folder, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            check=True,
            timeout=280,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
