"""The last line of `make test`: how many tests were skipped, and why."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.support import skipped

TESTS = """
import pytest

@pytest.mark.parametrize("n", range(3))
def test_on_a_gpu(n):
    pytest.skip("no GPU")

@pytest.mark.skipif(True, reason="no kubectl")
def test_of_manifests(): ...

def test_that_runs(): ...

def test_that_fails():
    assert False
"""


def test_the_reasons_of_a_part_are_kept_and_added_up(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    cache = tmp_path / "cache"
    options = [*("-q", "-c", "/dev/null", "-n", "2"), *("-p", "xdist", "-p", "tests.support.skipped")]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-o", f"cache_dir={cache}", str(tmp_path)],
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # their imports take seconds
        capture_output=True,
        timeout=120,
    )
    said = subprocess.run(
        [sys.executable, "-m", "tests.support.skipped", str(cache), str(cache)],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert said.stdout == "8 tests were skipped: 6 (no GPU), 2 (no kubectl)\n"


def test_the_line_shows_the_common_reasons_and_counts_the_rest() -> None:
    counts = Counter({f"reason {n}": 10 - n for n in range(7)})
    assert skipped.line(counts).startswith("49 tests were skipped: 10 (reason 0), ")
    assert skipped.line(counts).endswith("9 (other reasons: add -rs to PYTEST_FLAGS)")
    assert skipped.line(Counter()) == "no test was skipped"
