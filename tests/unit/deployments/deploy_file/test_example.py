"""The deploy file that messages name is there, from a source tree and from a wheel."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from serve_app.deployments.deploy_file import example as module
from serve_app.deployments.deploy_file.example import example
from tests.support.named_tests import ROOT


def test_a_source_tree_names_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert example() == Path("deploy/local.yaml")
    monkeypatch.chdir(tmp_path)
    assert example("gpu.yaml") == ROOT / "deploy" / "gpu.yaml"


def test_a_wheel_brings_the_folder_that_is_looked_for_first() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    brought = {Path(place): ROOT / source for source, place in build["force-include"].items()}
    in_wheel, in_tree = module._FOLDERS
    assert brought == {in_wheel.relative_to(ROOT): in_tree}
    assert all(example(path.name).samefile(path) for path in in_tree.iterdir())
