"""requirements.lock: what the image installs is what pyproject.toml asks for, every file by its hash."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).resolve().parents[2]
LOCK: Final = (ROOT / "requirements.lock").read_text("utf-8")


def pins() -> dict[str, list[str]]:
    """Package -> its versions, each for another platform, by the lines of the lock."""
    found: dict[str, list[str]] = {}
    for line in LOCK.splitlines():
        if line and not line.startswith(" "):
            pin = re.match(r"([A-Za-z0-9._-]+)==([^ ]+) ", line)
            assert pin, line
            found.setdefault(canonicalize_name(pin[1]), []).append(pin[2])
    return found


def test_every_dependency_is_locked_in_its_range() -> None:
    """But for torch, whose build is chosen where the image is made. `make lock` mends it."""
    locked = pins()
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    for text in wanted:
        dependency = Requirement(text)
        name = canonicalize_name(dependency.name)
        if name == "torch":
            assert name not in locked
            continue
        assert locked.get(name), f"{text} is not in requirements.lock: run `make lock`"
        assert all(dependency.specifier.contains(version) for version in locked[name]), text


def test_every_pin_has_hashes_and_no_address() -> None:
    entries = re.split(r"\n(?=\S)", LOCK.strip())
    assert len(entries) > 50
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in LOCK
    assert not [name for name in pins() if name.startswith("nvidia")]  # of torch's build


def test_the_image_installs_the_lock_and_nothing_beside_it() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    assert "pip install --no-deps --require-hashes -r requirements.lock" in dockerfile
    assert len(re.findall(r"pip install --no-deps \. && pip check", dockerfile)) == 2  # cpu, cuda
    assert re.search(r"^ARG PYTHON_IMAGE=python:3\.11\.\d+-slim-\w+$", dockerfile, re.M)
    assert "!requirements.lock" in (ROOT / ".dockerignore").read_text("utf-8").splitlines()
