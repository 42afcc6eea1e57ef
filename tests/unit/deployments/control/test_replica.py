"""Where the control plane keeps its data."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_app.config import ControlConfig, GatewayConfig
from serve_app.config.places import DATABASE_URL
from serve_app.deployments.control.replica import prepared_database

OTHER = "postgresql://user@host/name"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(DATABASE_URL, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "serve-app"


def test_a_file_of_this_user_by_default(state: Path) -> None:
    assert prepared_database(GatewayConfig()) == f"sqlite:///{state}/control.db"
    assert state.stat().st_mode & 0o777 == 0o700


def test_beside_the_usage_of_this_server(tmp_path: Path) -> None:
    assert prepared_database(GatewayConfig(usage_dir=tmp_path)) == f"sqlite:///{tmp_path}/control.db"


def test_the_environment_goes_before_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    config = GatewayConfig(control=ControlConfig(database_url=OTHER))
    assert prepared_database(config) == OTHER
    monkeypatch.setenv(DATABASE_URL, "postgresql://secret@host/name")
    assert prepared_database(config) == "postgresql://secret@host/name"


def test_a_folder_that_cannot_be_made_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert prepared_database(GatewayConfig(usage_dir=tmp_path / "file" / "usage")).endswith("control.db")
