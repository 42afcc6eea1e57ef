"""Torch's threads leave their cores to others soon after an operation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serve_app.openmp import LOOKS, look_briefly

SCRIPT = """
import time
import serve_app
import torch

torch.set_num_threads(2)
x = torch.zeros(1_000_000)
x.add_(1)
time.sleep(0.1)
spent = 0.0
for _ in range(20):
    x.add_(1)
    began = time.process_time()
    time.sleep(0.02)
    spent += time.process_time() - began
print(spent / 20, "libgomp" in open("/proc/self/maps").read())
"""


def spent_after_an_operation(**changed: str) -> float:
    """Seconds of the processor that torch's threads take while the program sleeps, after each operation."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environ | changed, capture_output=True, text=True, check=True
    )
    seconds, is_gnu = done.stdout.split()
    if is_gnu != "True":
        pytest.skip("torch has another OpenMP than GNU's")
    return float(seconds)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="of Linux")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core has no second thread")
@pytest.mark.full  # it reads the clock of threads
def test_threads_sleep_soon_unless_the_operator_wants_otherwise() -> None:
    assert spent_after_an_operation() < 0.001
    assert spent_after_an_operation(OMP_WAIT_POLICY="active") > 0.005


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"GOMP_SPINCOUNT": str(LOOKS)}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "passive"}, {"OMP_WAIT_POLICY": "passive"}),
    ],
)
def test_what_the_operator_has_set_wins(before: dict[str, str], after: dict[str, str]) -> None:
    environ = dict(before)
    look_briefly(environ)
    assert environ == after
