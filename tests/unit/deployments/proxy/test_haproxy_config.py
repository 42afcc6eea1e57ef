import subprocess
from pathlib import Path

import pytest

from serve_app.api.protocol.family import Family
from serve_app.deployments.proxy import answers
from serve_app.deployments.proxy.haproxy_config import adapted, admin_socket
from serve_app.deployments.proxy.settings import HaproxySettings
from tests.support.haproxy import BINARY, ray_config

HOSTS = ("127.0.0.1", "0.0.0.0", "192.168.7.1", "::1", "::", "localhost")


def binds(text: str) -> dict[str, list[str]]:
    """Section -> what it binds."""
    found: dict[str, list[str]] = {}
    head = ""
    for line in text.splitlines():
        if line and not line[0].isspace():
            head = line
        elif line.strip().startswith("bind "):
            found.setdefault(head, []).append(line.strip().removeprefix("bind "))
    return found


def whole(folder: Path, host: str = "127.0.0.1") -> HaproxySettings:
    return HaproxySettings(
        host,
        tuple(answers.request_rules(Family.OPENAI)),
        tuple(answers.errors(folder)),
        tuple(answers.starting_rules(folder)),
        tuple(answers.missing_rules(folder)),
    )


@pytest.mark.parametrize("host", HOSTS)
def test_http_listens_where_it_should_and_all_else_of_haproxy_on_loopback(tmp_path: Path, host: str) -> None:
    text = ray_config(tmp_path, port=8000, stats_port=8404, metrics_port=9101)
    found = binds(adapted(text, HaproxySettings(host), "/tmp/own"))
    assert found.pop("frontend http_frontend") == [
        f"unix@{tmp_path}/next mode 600 name next",
        f"{host}:8000" + (" v4v6" if host == "::" else ""),
    ]
    assert found == {"frontend prometheus": ["127.0.0.1:9101"], "listen stats": ["127.0.0.1:8404"]}


def test_haproxy_takes_what_ray_writes_and_this_makes_of_it(tmp_path: Path) -> None:
    for servers in ([], [30_000], [30_000, 30_001]):
        file = tmp_path / "made.cfg"
        text = ray_config(tmp_path, servers=servers, fallback=8500)
        file.write_text(adapted(text, whole(tmp_path), str(tmp_path / "own")))
        done = subprocess.run([BINARY, "-c", "-f", str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "ALERT" not in done.stderr


def servers(text: str) -> list[str]:
    """The ports of the gateways, as they stand in a configuration."""
    lines = [line.split() for line in text.splitlines() if line.strip().startswith("server ")]
    return sorted({words[2].rpartition(":")[2] for words in lines if "backup" not in words})


def test_a_backend_that_ray_counts_nobody_in_keeps_the_gateways_it_had(tmp_path: Path) -> None:
    """As while a gateway takes new endpoints: it answers, and is not among those that run."""
    former, file = "", tmp_path / "made.cfg"
    for wanted, kept in (
        ([30_000, 30_001], ["30000", "30001"]),
        ([], ["30000", "30001"]),
        ([], ["30000", "30001"]),
        ([30_002], ["30002"]),
    ):
        text = ray_config(tmp_path, servers=wanted, fallback=8500)
        former = adapted(text, whole(tmp_path), str(tmp_path / "own"), former)
        assert servers(former) == kept
        file.write_text(former)
        done = subprocess.run([BINARY, "-c", "-f", str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("fallback", "name"), [(8500, "fallback"), (None, "next")])
def test_haproxy_takes_the_place_of_serves_own_proxy(tmp_path: Path, fallback: int | None, name: str) -> None:
    """Ray counts the server by its name, and nobody asks Serve's own proxy."""
    text = ray_config(tmp_path, servers=[30_000], fallback=fallback)
    text = adapted(text, HaproxySettings("::1"), "/tmp/own")
    assert ":8500" not in text
    assert f"server {name} unix@{tmp_path}/next backup no-check pool-max-conn 0" in text
    assert f"use-server {name} if {{ stopping }}" in text


def test_only_gateways_make_haproxy_healthy(tmp_path: Path) -> None:
    """The server that hands requests on is always up, and counts for nothing."""
    for servers, told in (
        ([], "always_false"),
        ([30_000], "srv_is_up(http-system/replica-30000)"),
    ):
        text = adapted(
            ray_config(tmp_path, servers=servers, fallback=8500), HaproxySettings("::1"), "/tmp/own"
        )
        assert f"acl backend_http-system_server_up {told}\n" in text
        assert "nbsrv" not in text


def test_the_admin_socket_moves_and_is_the_owners_alone(tmp_path: Path) -> None:
    text = ray_config(tmp_path)
    assert admin_socket(text) == str(tmp_path / "admin.sock")
    made = adapted(text, HaproxySettings("::1"), "/tmp/own")
    assert admin_socket(made) == "/tmp/own"
    assert "stats socket /tmp/own mode 600 level admin expose-fd listeners" in made


@pytest.mark.parametrize("lost", ["global", "defaults", "frontend http_frontend", "backend default_backend"])
def test_a_file_that_ray_does_not_write_like_that_is_refused(tmp_path: Path, lost: str) -> None:
    text = ray_config(tmp_path).replace(f"{lost}\n", "backend other\n")
    with pytest.raises(ValueError, match="no section"):
        adapted(text, HaproxySettings("::1"), "/tmp/own")


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("    bind 127.0.0.1:8000", "    bind unix@/tmp/a"),
        ("    maxconn 4096", ""),
    ],
)
def test_a_line_that_cannot_be_made_safe_is_refused(tmp_path: Path, line: str, wrong: str) -> None:
    text = ray_config(tmp_path)
    assert line in text
    with pytest.raises(ValueError):
        adapted(text.replace(line, wrong), HaproxySettings("::1"), "/tmp/own")


def test_what_is_not_named_stays_as_it_is(tmp_path: Path) -> None:
    text = ray_config(tmp_path, servers=[30_000])
    lines = [line.strip() for line in adapted(text, HaproxySettings("127.0.0.1"), "/tmp/own").splitlines()]
    changed = (
        "#",
        "errorfile ",
        "stats socket ",
        "bind ",
        "option splice-",
        "timeout client ",
        "acl backend_http-system_server_up ",
        "acl routes ",
    )
    for line in filter(None, map(str.strip, text.splitlines())):
        assert line.startswith(changed) or line.endswith(" if routes") or line in lines, line
