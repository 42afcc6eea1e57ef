"""Which combinations of parameters `make test` leaves to the full counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

@pytest.fixture(params=["here", "elsewhere"])
def machine(request):
    if request.param == "elsewhere":
        pytest.skip("not on this machine")
    return request.param

@pytest.mark.parametrize("a", ["a1", "a2", "a3"])
@pytest.mark.parametrize(("b", "c"), [("b1", 1), ("b2", 1)])
def test_combined(a, b, c, machine): ...

@pytest.mark.all_combinations
@pytest.mark.parametrize("a", ["a1", "a2"])
@pytest.mark.parametrize("b", ["b1", "b2"])
def test_of_all(a, b): ...

@pytest.mark.parametrize(("field", "value"), [("x", 1), ("x", 2), ("y", 1), ("y", 2)])
def test_of_one_mark(field, value): ...

@pytest.mark.parametrize("n", range(100))
def test_of_many(n): ...

def test_of_itself(): ...

def test_of_a_machine(machine): ...
"""


def test_each_value_is_in_one_that_stays(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    options = [*("-q", "-c", "/dev/null", "-p", "no:cacheprovider"), *("-p", "tests.support.combinations")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--collect-only", "-m", "not full", str(tmp_path)],
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = {line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line}
    stay = ("b1-1-a1", "b2-1-a2", "b1-1-a3")
    combined = {f"test_combined[{machine}-{each}]" for machine in ("here", "elsewhere") for each in stay}
    of_all = {f"test_of_all[b{b}-a{a}]" for a in (1, 2) for b in (1, 2)}
    of_many = {f"test_of_many[{n * 99 // 2}]" for n in range(3)}
    of_one = {f"test_of_one_mark[{each}]" for each in ("x-1", "x-2", "y-2")}
    by_itself = {"test_of_itself", "test_of_a_machine[here]", "test_of_a_machine[elsewhere]"}
    assert found == combined | of_all | of_one | of_many | by_itself
