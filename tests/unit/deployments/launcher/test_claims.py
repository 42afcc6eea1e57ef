"""Two servers of one machine: what only one of them may have."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from serve_app.deployments.environment import free_port
from serve_app.deployments.launcher import ports
from serve_app.deployments.launcher.claims import Claims
from serve_app.deployments.launcher.errors import CannotServe
from serve_app.deployments.launcher.server import Options, Server
from tests.support.ray_cluster import ROOT

HOLDER = """
import sys
from serve_app.deployments.launcher.claims import Claims
claims = Claims()
for key in sys.argv[1:]:
    claims.take(key, key, "")
print("taken", flush=True)
sys.stdin.read()
"""


@contextmanager
def other(*keys: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has claimed `keys`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, *keys],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "taken\n"
        yield process
    finally:
        process.kill()
        process.wait()


def config(port: int, **args: object) -> dict[str, object]:
    system = {"name": "system", "import_path": "serve_app.deployments.build:build_system_app", "args": args}
    return yaml.safe_load(yaml.safe_dump({"http_options": {"host": "127.0.0.1", "port": port},
                                          "applications": [system]}))  # fmt: skip


def test_a_claim_is_one_process_s_until_it_ends_however_it_ends() -> None:
    claims, key = Claims(), f"test {os.getpid()}"
    with other(key) as holder:
        for _ in range(200):  # more than wait at a socket that nobody reads
            with pytest.raises(CannotServe, match=r"that thing belongs to another server") as refused:
                claims.take(key, "that thing", "Choose another.")
            assert key not in claims
            if refused.value.args[0].endswith("another server. Choose another."):
                break  # its queue is full: no name any more
            assert f"process {holder.pid}: {sys.executable} -c" in str(refused.value)
        claims.take(f"{key}, too", "", "")
        holder.kill()
        holder.wait()
        claims.take(key, "that thing", "")
        claims.take(key, "that thing", "")
        assert key in claims


def server(folder: Path) -> Server:
    return Server(Options(folder / "a.yaml"), folder, socket.socketpair()[0])


@pytest.mark.parametrize("setting", ["http_options.port", "args.grpc_port of the gateway"])
def test_a_port_that_another_server_starts_with_is_refused_before_it_listens(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else both would listen: proxies and gateways of one user may share a port."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    http, rpc = free_port(), free_port()
    taken = http if setting.startswith("http") else rpc
    with other(f"127.0.0.1:{taken}"), pytest.raises(CannotServe) as refused:
        server(tmp_path)._take(config(http, grpc_port=rpc), {})
    assert str(refused.value).startswith(f"127.0.0.1:{taken} belongs to another server (process ")
    assert f"change {setting} in the deploy file" in str(refused.value)


def test_a_database_has_one_control_plane_on_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "first"))
    first, second = server(tmp_path), server(tmp_path)
    first._take(config(free_port()), {})
    first._take(config(free_port()), {})  # a deploy over it
    with pytest.raises(CannotServe, match=r"the control plane's database belongs to .*XDG_STATE_HOME"):
        second._take(config(free_port()), {})
    second._take(config(free_port(), control={"enabled": False}), {})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "second"))
    second._take(config(free_port()), {})


def test_servers_that_start_together_have_other_ports_for_their_proxies() -> None:
    """The usual ones are free for both, until one of them listens."""
    one, two = Claims(), Claims()
    first, second = ports.haproxy_ports(one), ports.haproxy_ports(two)
    assert not set(first.values()) & set(second.values())
