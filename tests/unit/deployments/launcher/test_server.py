"""What the command that serves looks at before it starts anything."""

import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_app.config.places import USAGE_DIR
from serve_app.config.secret_file import secret_file
from serve_app.deployments.environment import free_port
from serve_app.deployments.launcher import ports
from serve_app.deployments.launcher.claims import Claims
from serve_app.deployments.launcher.errors import CannotServe
from serve_app.deployments.launcher.server import Options, Server, chat_endpoint, read
from serve_app.deployments.launcher.state import check_writable
from tests.support.small_disk import small_disk

FILE = """
http_options: {{host: 127.0.0.1, port: {port}}}
applications:
- {{name: system, import_path: "serve_app.deployments.build:build_system_app"}}
"""


def test_a_port_in_use_is_named_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        file.write_text(FILE.format(port=port))
        with pytest.raises(CannotServe, match=rf"127\.0\.0\.1:{port} .*http_options\.port"):
            ports.take(read(file), {}, Claims())


def test_a_port_of_grpc_in_use_is_named_with_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        text = FILE.format(port=free_port()).rstrip().removesuffix("}")
        file.write_text(f"{text}, args: {{grpc_port: {port}}}}}\n")
        with pytest.raises(CannotServe, match=rf"127\.0\.0\.1:{port} .*args\.grpc_port"):
            ports.take(read(file), {}, Claims())


def test_a_port_of_the_proxy_is_not_one_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(FILE.format(port=8404))
    with pytest.raises(CannotServe, match="the server's own proxy takes port 8404; choose another"):
        ports.take(read(file), {"stats_port": 8404, "metrics_port": 9101}, Claims())


@pytest.mark.parametrize("host", ["::", "::1"])
def test_addresses_of_ipv6_are_looked_at_and_told_as_urls_have_them(tmp_path: Path, host: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(FILE.format(port=free_port()).replace("127.0.0.1", f'"{host}"'))
    ports.take(read(file), {}, Claims())
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::1", 0))
        taken.listen()
        file.write_text(FILE.format(port=taken.getsockname()[1]).replace("127.0.0.1", f'"{host}"'))
        with pytest.raises(CannotServe, match=rf"\[{host}\]:\d+ cannot be used .Address already in use"):
            ports.take(read(file), {}, Claims())
    assert ports.reachable(host) == {"::": "127.0.0.1", "::1": "[::1]"}[host]


def test_any_number_of_deploys_can_be_told_to_a_launcher_that_reads_at_its_end(tmp_path: Path) -> None:
    launcher, link = socket.socketpair()
    with launcher, link:
        link.settimeout(10)
        server = Server(Options(tmp_path / "a.yaml", grace_s=7.0), tmp_path, link)
        for _ in range(100_000):
            server._tell_launcher()
        assert launcher.recv(65_536) == b"ready 7.0\n"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("applications: [{name: a}]", "http_options.host"),
        ("http_options: {host: 127.0.0.1}", "deploy/local.yaml"),
        ("applications: [", "is no YAML"),
    ],
)
def test_a_deploy_file_that_cannot_serve_is_refused_with_a_hint(tmp_path: Path, text: str, hint: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(CannotServe, match=hint):
        read(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotServe, match=r"none\.yaml"):
        read(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("endpoints", "name"),
    [
        ("[{name: mine}]", "mine"),
        ("[{name: vectors, task: llm/v1/embeddings}, {name: mine, task: llm/v1/chat}]", "mine"),
        ("[]", "demo-chat"),
    ],
)
def test_the_first_request_that_is_shown_asks_an_endpoint_of_the_file(endpoints: str, name: str) -> None:
    gateway = {"name": "Gateway", "user_config": {"endpoints": yaml.safe_load(endpoints)}}
    assert chat_endpoint({"applications": [{"name": "system", "deployments": [gateway]}]}) == name


@pytest.mark.parametrize(
    ("host", "args", "url"),
    [
        ("127.0.0.1", {}, "http://127.0.0.1:8000/console"),
        ("0.0.0.0", {"console": {"session_hours": 1}}, "http://127.0.0.1:8000/console"),
        ("127.0.0.1", {"console": {"enabled": False}}, None),
    ],
)
def test_the_console_is_named_where_there_is_one(host: str, args: dict[str, Any], url: str | None) -> None:
    config = {
        "http_options": {"host": host},
        "applications": [{"name": "m"}, {"name": "system", "args": args}],
    }
    assert ports.console_url(config) == url


@pytest.mark.parametrize("name", ["state", "usage"])
def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    config = {"applications": [{"name": "system", "args": {"usage_dir": str(tmp_path / "usage")}}]}
    check_writable(config)
    shutil.rmtree(tmp_path / name)
    (tmp_path / name).write_text("in the way")
    with pytest.raises(CannotServe, match=rf"{tmp_path / name}.*set .*to a folder that can be written"):
        check_writable(config)


def test_a_folder_on_a_disk_that_takes_no_writes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_disk(tmp_path / "disk", 2**20) as disk:
        monkeypatch.setenv("XDG_STATE_HOME", str(disk))
        monkeypatch.delenv(USAGE_DIR, raising=False)
        config = {"applications": [{"name": "system"}]}
        check_writable(config)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(CannotServe, match=f"{disk}/serve-app: Read-only file system"):
            check_writable(config)
        with pytest.raises(OSError, match="Read-only"):
            secret_file(disk / "serve-app" / "ray-token")
