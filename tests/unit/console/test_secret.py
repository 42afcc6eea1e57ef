"""Where the secret of sessions comes from."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from serve_app.config import ConsoleConfig
from serve_app.console.app import Console
from serve_app.console.secret import MIN_CHARS, load_secret

GIVEN = "s" * MIN_CHARS


def test_the_environment_goes_first_and_leaves_no_file(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path), "SERVE_APP_CONSOLE_SECRET": GIVEN}
    assert load_secret(environ) == GIVEN
    assert list(tmp_path.iterdir()) == []


def test_all_gateways_of_a_machine_share_one_file_that_nobody_else_reads(tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(load_secret, [environ] * 32))
    assert len(found) == 1
    (file,) = (tmp_path / "serve-app").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_text() == found.pop()
    assert len(file.read_text()) >= MIN_CHARS


def test_where_nothing_can_be_kept_sessions_end_with_the_gateway(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "serve-app").write_text("a file, and no folder")
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    assert load_secret(environ) != load_secret(environ)
    assert "SERVE_APP_CONSOLE_SECRET" in caplog.text


def test_a_secret_that_is_cut_short_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "serve-app").mkdir()
    (tmp_path / "serve-app" / "console-secret").write_text("abc")
    assert len(load_secret({"XDG_STATE_HOME": str(tmp_path)})) >= MIN_CHARS
    assert "cut short" in caplog.text


def test_a_weak_secret_stops_a_gateway_from_starting() -> None:
    async def inner(scope, receive, send) -> None: ...

    with pytest.raises(ValueError, match="openssl rand -hex 32"):
        Console(inner, ConsoleConfig(), lambda scope: None, {"SERVE_APP_CONSOLE_SECRET": "short"})
