"""The ranks of a replica lie on two nodes, as its placement group says, and are lost as a whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.ray_cluster import ROOT

pytestmark = [pytest.mark.full, pytest.mark.ray, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("how", "rounds"), [("placed", 1), ("killed", 3), ("frozen", 3), ("orphaned", 1), ("removed", 2)]
)
def test_a_replica_on_two_nodes_is_placed_and_lost_as_a_whole(how: str, rounds: int, tmp_path: Path) -> None:
    # As from a shell: none of what this process set for a cluster of its own.
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SERVE_APP_"))
    }
    folder = tempfile.mkdtemp(prefix="sa-", dir="/tmp")  # short: Ray puts sockets into it
    left = tmp_path / "left"
    left.mkdir()
    try:
        subprocess.run(
            [sys.executable, "-m", "tests.faults.spanning", how, str(tmp_path), str(rounds)],
            env=environ | {"RAY_TMPDIR": folder, "PYTHONPATH": str(ROOT), "TMPDIR": str(left)},
            cwd=ROOT,
            check=True,
            timeout=840,
        )
        assert not [
            each for each in left.iterdir() if not each.name.startswith("torchinductor")
        ]  # torch's own
    finally:
        shutil.rmtree(folder, ignore_errors=True)
