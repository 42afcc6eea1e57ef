"""A node of a cluster of three dies with its replica: no request notices whose gateway lived."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.ray_cluster import ROOT

pytestmark = [pytest.mark.full, pytest.mark.ray, pytest.mark.timeout(400)]


@pytest.mark.parametrize("how", ["killed", "frozen"])
def test_requests_whose_gateway_lives_lose_nothing_with_a_node(how: str, tmp_path: Path) -> None:
    # As from a shell: none of what this process set for a cluster of its own.
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SERVE_APP_"))
    }
    folder = tempfile.mkdtemp(prefix="sa-", dir="/tmp")  # short: Ray puts sockets into it
    try:
        subprocess.run(
            [sys.executable, "-m", "tests.faults.node_death", how, str(tmp_path)],
            env=environ | {"RAY_TMPDIR": folder, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            check=True,
            timeout=360,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
