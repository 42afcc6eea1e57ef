"""What the soak refuses before it starts anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[2] / "benchmarks" / "soak.py"


@pytest.mark.parametrize(
    ("minutes", "warm"), [("5", "5"), ("1", "5"), ("nan", "5"), ("5", "-1"), ("5", "nan")]
)
def test_a_soak_without_a_minute_behind_the_warm_ones_is_refused(minutes: str, warm: str) -> None:
    command = [sys.executable, str(SOAK), f"--minutes={minutes}", f"--warm-minutes={warm}"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "--minutes: must be above --warm-minutes" in ended.stderr
