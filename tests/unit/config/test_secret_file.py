"""A secret of this user's servers is made once, whole, and is the owner's alone."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from serve_app.config.secret_file import secret_file
from tests.support.small_disk import FILLER, fill, free, small_disk


def test_a_secret_is_made_once_and_is_the_owners_alone(tmp_path: Path) -> None:
    path = secret_file(tmp_path / "state" / "secret")
    secret = path.read_text()
    assert len(bytes.fromhex(secret)) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret_file(path).read_text() == secret


def test_a_secret_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = secret_file(tmp_path / "secret")
    path.chmod(0o644)
    secret_file(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_full_disk_leaves_no_secret_that_is_cut_short(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 2**20) as disk:
        fill(disk)
        with pytest.raises(OSError, match="No space"):
            secret_file(disk / "secret")
        assert [path.name for path in disk.iterdir()] == [FILLER]
        free(disk)
        (disk / "secret").touch()  # as an earlier version left it
        assert len(secret_file(disk / "secret").read_text()) == 64
        assert [path.name for path in disk.iterdir()] == ["secret"]
