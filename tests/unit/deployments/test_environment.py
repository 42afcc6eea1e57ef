import fcntl
import os
import resource
import shutil
import stat
from pathlib import Path

import pytest

from serve_app.api.protocol.family import Family
from serve_app.deployments import environment
from serve_app.deployments.proxy.settings import HaproxySettings
from serve_app.loopback import LOOPBACK
from tests.support.small_disk import small_disk


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


def test_what_is_executed_lies_where_that_is_permitted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with small_disk(tmp_path / "noexec", 2**20, "noexec") as usual:
        made = environment.private_folder(str(usual), {"XDG_RUNTIME_DIR": str(run)})
        assert made.parent == run
        made = environment.private_folder(str(usual), {"XDG_RUNTIME_DIR": str(tmp_path / "none")})
        assert made.parent == Path("/var/tmp")
        made.rmdir()
    with small_disk(tmp_path / "exec", 2**20) as usual:
        assert environment.private_folder(str(usual), {}).parent == usual


def test_a_cleaner_sees_that_the_folder_is_in_use(tmp_path: Path) -> None:
    """By the lock that systemd-tmpfiles tries to take before it looks into a folder."""

    def is_left_alone() -> bool:
        cleaner = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(cleaner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(cleaner)
        return False

    assert not is_left_alone()
    kept = environment.keep_from_cleaners(tmp_path)
    assert is_left_alone()
    os.close(kept)
    assert not is_left_alone()


def test_serve_itself_is_on_loopback_behind_haproxy_and_public_without(tmp_path: Path) -> None:
    environ = environment.haproxy(tmp_path)
    assert environment.listen(tmp_path, "0.0.0.0", Family.OPENAI, environ) == LOOPBACK
    assert environ[environment.PUBLIC_HOST] == "0.0.0.0"
    assert HaproxySettings.read(tmp_path / "settings.json").host == "0.0.0.0"
    alone = {environment.PUBLIC_HOST: "127.0.0.1"}  # left from another start
    assert environment.listen(tmp_path, "0.0.0.0", Family.MINDIE, alone) == "0.0.0.0"
    assert alone == {"SERVE_APP_V1_DIALECT": "mindie"}


def test_haproxy_never_wants_more_files_than_it_may_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for files, most in ((resource.RLIM_INFINITY, 16_384), (1_048_576, 16_384), (20_000, 9_872), (1_024, 384)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (1_024, files))
        assert environment.haproxy(tmp_path)["RAY_SERVE_HAPROXY_MAXCONN"] == str(most)


def test_without_haproxy_nothing_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_haproxy_binary", lambda: None)
    assert environment.haproxy(tmp_path) == environment.PLAIN
    assert not any(tmp_path.iterdir())


def test_no_port_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not be in use yet when the next one is asked for."""
    monkeypatch.setattr(environment, "UNPICKED_PORTS", range(29_100, 29_104))
    given = [environment.free_port() for _ in range(4)]
    assert sorted(given) == [*range(29_100, 29_104)]
    with pytest.raises(OSError, match="no free port from 29100 to 29103"):
        environment.free_port()
