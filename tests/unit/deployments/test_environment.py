import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from serve_app.deployments import environment


def test_the_token_is_made_once_and_is_the_owners_alone(tmp_path: Path) -> None:
    path = environment.token_file(tmp_path / "state" / "token")
    token = path.read_text()
    assert len(bytes.fromhex(token)) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert environment.token_file(path).read_text() == token


def test_a_token_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = environment.token_file(tmp_path / "token")
    path.chmod(0o644)
    environment.token_file(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_the_operator_has_set_wins() -> None:
    environ = {"RAY_AUTH_MODE": "disabled"}
    environment.apply({"RAY_AUTH_MODE": "token", "OTHER": "1"}, environ)
    assert environ == {"RAY_AUTH_MODE": "disabled", "OTHER": "1"}


def test_haproxy_sockets_fit_a_socket_path_and_are_the_owners_alone() -> None:
    folder = environment.private_folder()
    try:
        sockets = environment.haproxy(folder)
        cluster_folder = "x" * 56  # Ray puts one between
        path = folder / cluster_folder / Path(sockets["RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH"]).name
        assert len(str(path)) <= 97
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        shutil.rmtree(folder)


def test_haproxy_listens_nowhere_else_than_it_must(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_haproxy_binary", lambda: "/bin/true")
    wrapper = environment.haproxy(tmp_path)["RAY_SERVE_HAPROXY_BINARY_PATH"]
    config = tmp_path / "haproxy.cfg"
    config.write_text("    bind :9101\n    bind 0.0.0.0:8000\n  bind *:8404\n    bind 127.0.0.1:8001\n")
    subprocess.run([wrapper, "-db", "-f", str(config), "-dR"], check=True)
    assert config.read_text().split() == [
        *("bind", "127.0.0.1:9101", "bind", "0.0.0.0:8000"),
        *("bind", "127.0.0.1:8404", "bind", "127.0.0.1:8001"),
    ]


def test_without_haproxy_nothing_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_haproxy_binary", lambda: None)
    assert environment.haproxy(tmp_path) == {}
