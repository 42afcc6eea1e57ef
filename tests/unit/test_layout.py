"""Where tests lie, as README.md says: `unit/` mirrors the package, and what tests share is in `support/`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
TESTS: Final = ROOT / "tests"
UNIT: Final = TESTS / "unit"
SUPPORT: Final = sorted((TESTS / "support").glob("*.py"))
FOLDERS: Final = sorted({path.parent.relative_to(UNIT) for path in UNIT.rglob("test_*.py")} - {Path()})


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_a_folder_of_unit_tests_has_the_name_of_a_package(folder: Path) -> None:
    assert list((ROOT / "serve_app" / folder).glob("*.py"))


def test_no_helper_lies_loose() -> None:
    assert [path.name for path in TESTS.glob("*.py")] == ["conftest.py"]
    assert not [path.name for path in SUPPORT if path.name.startswith("test_")]


def test_what_lies_in_support_is_used() -> None:
    others = [path for folder in (TESTS, ROOT / "benchmarks") for path in folder.rglob("*.py")]
    used = {
        name
        for path in (*others, ROOT / "Makefile")
        for name in re.findall(r"tests\.support\.(\w+)", path.read_text("utf-8"))
        if path != TESTS / "support" / f"{name}.py"
    }
    assert {module.stem for module in SUPPORT} - used == set()


def test_tests_that_need_ray_lie_where_make_test_looks_for_them() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    folders = [
        folder
        for words in re.findall(r"^(?:RAY|DEPLOY)_TESTS := (.*)$", makefile, re.MULTILINE)
        for folder in words.split()
    ]
    mark = "pytest.mark." + "ray"
    found = {
        next((folder for folder in folders if path.is_relative_to(ROOT / folder)), str(path))
        for path in TESTS.rglob("test_*.py")
        if mark in path.read_text("utf-8")
    }
    assert found == set(folders)
