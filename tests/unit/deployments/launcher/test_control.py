"""Deploy files over a real socket: what the server does with them, and what who asks hears."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from serve_app.cli.main import cli
from serve_app.deployments.launcher.control import Control, Note, database, deploy
from serve_app.deployments.launcher.errors import CannotServe
from serve_app.deployments.launcher.server import fixed

FILE = """
http_options: {host: 127.0.0.1, port: 8123}
applications:
- name: system
  route_prefix: /
  import_path: serve_app.deployments.build:build_system_app
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def serve(folder: Path, work: Callable[[str, str, Callable[[str], None]], None]) -> Note:
    folder.mkdir()
    note = Note(8123, str(Control(folder, work).path), "/x/a.yaml")
    note.write()
    return note


def test_who_asks_hears_of_progress_and_of_the_end(tmp_path: Path) -> None:
    got: list[tuple[str, str]] = []

    def work(file: str, text: str, say: Callable[[str], None]) -> None:
        got.append((file, text))
        say("one")
        say("two")

    note = serve(tmp_path / "run", work)
    heard: list[str] = []
    deploy("a.yaml", "text: ü", 8123, heard.append)
    assert got == [("a.yaml", "text: ü")]
    assert heard == ["one", "two"]
    assert Note.path(8123).stat().st_mode & 0o077 == 0
    note.remove()
    assert not Note.path(8123).exists()


def test_a_database_is_known_by_where_it_is() -> None:
    config = yaml.safe_load(FILE)
    (system,) = config["applications"]
    own = database(config)
    assert own == database(config)
    for args in ({"control": {"database_url": "sqlite:////x/other.db"}}, {"usage_dir": "/x/usage"}):
        system["args"] = args
        assert database(config) not in ("", own)
    system["args"] = {"control": {"enabled": False}}
    assert database(config) == ""
    assert database(yaml.safe_load(FILE), {"SERVE_APP_DATABASE_URL": "a"}) == database(
        yaml.safe_load(FILE), {"SERVE_APP_DATABASE_URL": "a", "XDG_STATE_HOME": "/y"}
    )


def test_a_database_is_a_file_whatever_its_path(tmp_path: Path) -> None:
    """Two containers on the machine's network may have equal paths for different files."""
    config = yaml.safe_load(FILE)
    for name in ("a", "b"):
        (tmp_path / name / "serve-app").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a")
    a, b, link = (database(config, {"XDG_STATE_HOME": str(tmp_path / name)}) for name in ("a", "b", "link"))
    assert a == link != b
    (tmp_path / "a").rename(tmp_path / "gone")
    (tmp_path / "b").rename(tmp_path / "a")  # another folder at the same path
    assert database(config, {"XDG_STATE_HOME": str(tmp_path / "a")}) == b


@pytest.mark.parametrize(
    ("error", "words"), [(CannotServe("no room"), "no room"), (ValueError("odd"), "ValueError: odd")]
)
def test_a_failure_is_told(error: Exception, words: str, tmp_path: Path) -> None:
    def work(file: str, text: str, say: Callable[[str], None]) -> None:
        raise error

    serve(tmp_path / "run", work)
    with pytest.raises(CannotServe, match=words):
        deploy("a.yaml", "", 8123, print)


def test_one_deploy_at_a_time(tmp_path: Path) -> None:
    begun, end = threading.Event(), threading.Event()

    def work(file: str, text: str, say: Callable[[str], None]) -> None:
        begun.set()
        assert end.wait(60)

    serve(tmp_path / "run", work)
    first = threading.Thread(target=deploy, args=("a.yaml", "", 8123, print))
    first.start()
    assert begun.wait(60)
    with pytest.raises(CannotServe, match="under way"):
        deploy("b.yaml", "", 8123, print)
    end.set()
    first.join(60)
    assert not first.is_alive()
    deploy("b.yaml", "", 8123, print)


def test_without_a_server_the_command_says_which_run(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(FILE)
    Note(8123, str(tmp_path / "gone.sock"), "/x/gone.yaml").write()  # of a server that was killed
    told = CliRunner().invoke(cli, ["deploy", str(file)])
    assert told.exit_code == 1
    assert "port 8123" in told.output
    assert "serve-app serve FILE" in told.output
    folder = tmp_path / "run"
    folder.mkdir()
    Note(9000, str(Control(folder, lambda *_: None).path), "/x/b.yaml").write()
    assert "9000 (/x/b.yaml)" in CliRunner().invoke(cli, ["deploy", str(file)]).output


def test_a_file_with_errors_is_not_handed_over(tmp_path: Path) -> None:
    asked: list[str] = []
    serve(tmp_path / "run", lambda file, text, say: asked.append(file))
    file = tmp_path / "a.yaml"
    file.write_text(FILE + "  args: {nme: 1}\n")
    told = CliRunner().invoke(cli, ["deploy", str(file)])
    assert told.exit_code == 1
    assert "nme" in told.output
    assert not asked
    file.write_text(FILE)
    told = CliRunner().invoke(cli, ["deploy", str(file)])
    assert told.exit_code == 0, told.output
    assert asked == [str(file)]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"http_options": {"host": "0.0.0.0", "port": 1}}, "http_options.host"),
        ({"http_options": {"host": "127.0.0.1", "port": 2}}, "http_options.port"),
        ({"proxy_location": "EveryNode"}, "proxy_location"),
    ],
)
def test_what_takes_a_restart_is_refused_by_name(change: dict[str, object], field: str) -> None:
    old = {"http_options": {"host": "127.0.0.1", "port": 1}, "applications": [1]}
    fixed(old, {**old, "applications": [2]})
    with pytest.raises(CannotServe, match=field):
        fixed(old, {**old, **change})


def test_ctrl_c_says_that_the_server_goes_on(tmp_path: Path) -> None:
    begun, goes_on, done = threading.Event(), threading.Event(), threading.Event()

    def work(file: str, text: str, say: Callable[[str], None]) -> None:
        say("step 1 of 2")
        begun.set()
        assert goes_on.wait(60)
        say("step 2 of 2")
        done.set()

    serve(tmp_path / "run", work)
    file = tmp_path / "a.yaml"
    file.write_text(FILE)
    command = [sys.executable, "-m", "serve_app.cli", "deploy", str(file)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # What runs in the background of a shell ignores it, and so would the command.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as asked:  # fmt: skip
        assert asked.stdout is not None
        assert asked.stdout.readline() == "deploy: step 1 of 2\n"
        asked.send_signal(signal.SIGINT)
        _, said = asked.communicate(timeout=60)
    assert asked.returncode == 130
    assert f"the server goes on with {file}" in said
    assert "Traceback" not in said
    goes_on.set()
    assert done.wait(60)
