"""One server started by the launcher for other machines, and what those can do to it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
import yaml

from serve_app.api.error_renderers import render_error
from serve_app.api.protocol.family import Family
from serve_app.deployments.proxy.answers import LOST, STARTING, UNREADY
from serve_app.errors import ServeError
from tests.deploy import fake_model
from tests.deploy.deployment import DEMO, START_S, alone, app_of, deploy_file
from tests.support.invariants import WAIT_S
from tests.support.network import Namespace, two_networks
from tests.support.ray_cluster import ROOT

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

PORT: Final = 8000
GRPC_PORT: Final = 8001
SLOW: Final = 4_300
KEY: Final = "sk-" + 43 * "x"
PUBLIC: Final = {"00000000", 32 * "0"}  # every interface


@dataclass
class Machine:
    """The server's network, that of its clients, and what the server says."""

    inside: Namespace
    outside: Namespace
    said: Path
    launcher: subprocess.Popen[bytes]
    while_starting: list[Any] = field(default_factory=list)  # what a client saw: [seconds, status, body]

    def ask(self, *words: str) -> Any:
        """An answer of `tests.support.outside` from the other machine."""
        return json.loads(self.outside.run(sys.executable, "-m", "tests.support.outside", *words))

    def start(self, *words: str) -> subprocess.Popen[str]:
        """The same, under way."""
        command = self.outside.command(sys.executable, "-m", "tests.support.outside", *words)
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def watch(self, path: str) -> subprocess.Popen[str]:
        return self.start("watch", f"http://{self.inside.address}:{PORT}{path}", KEY)

    def named(self, name: str) -> list[psutil.Process]:
        """The server's processes whose name or title begins so."""
        found = []
        for each in self.inside.processes():
            with contextlib.suppress(psutil.Error):  # it has just ended
                if each.name().startswith(name) or "".join(each.cmdline()[:1]).startswith(name):
                    found.append(each)
        return found

    def get(self, path: str, key: str = KEY) -> Any:
        return self.ask("get", f"http://{self.inside.address}:{PORT}{path}", key)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with serving(tmp_path_factory.mktemp("machine")) as made:
        yield made


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Machine]:
    """A server for every address, started by the launcher."""
    raw = alone(deploy_file("local"), DEMO)
    raw["http_options"] |= {"host": "0.0.0.0", "port": PORT}
    app_of(raw, "system")["args"] |= {"usage_dir": str(folder / "usage"), "grpc_port": GRPC_PORT}
    app_of(raw, f"model-{DEMO}")["import_path"] = fake_model.IMPORT_PATH
    file, said = folder / "local.yaml", folder / "said"
    file.write_text(yaml.safe_dump(raw))
    environ = {
        name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SERVE_APP_"))
    }
    environ |= {"XDG_STATE_HOME": str(folder), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    environ |= {"SERVE_APP_API_KEYS": f"alice:inference,metrics:{hashlib.sha256(KEY.encode()).hexdigest()}"}
    with two_networks() as (inside, outside), said.open("w") as out:
        command = inside.command(sys.executable, "-m", "serve_app.cli", "serve", str(file), *flags)
        process = subprocess.Popen(command, env=environ, cwd=folder, stdout=out, stderr=subprocess.STDOUT)
        try:
            made = Machine(inside, outside, said, process)
            watch = made.watch("/v1/models")
            until_said("ready on", said, process)
            made.while_starting = seen(watch)
            yield made
        finally:
            process.kill()
            process.wait()
            while found := inside.processes():
                for each in found:
                    each.kill()
                psutil.wait_procs(found, timeout=1)


def seen(watch: subprocess.Popen[str]) -> list[Any]:
    """All that it saw, once the server was back."""
    out, _ = watch.communicate(timeout=START_S)
    return [json.loads(line) for line in out.splitlines()][:-1]


def so_far(watch: subprocess.Popen[str]) -> list[Any]:
    """All that it saw until now. Where every request waited, it saw nothing but 200."""
    watch.terminate()
    out, _ = watch.communicate(timeout=WAIT_S)
    return [line for line in map(json.loads, out.splitlines()) if isinstance(line, list)]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def until_said(text: str, said: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while text not in said.read_text():
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.2)


def test_another_machine_reaches_http_and_grpc_with_a_key_and_no_other_port(machine: Machine) -> None:
    check_reach(machine)


@pytest.mark.full
def test_it_reaches_no_more_of_serves_own_proxy(tmp_path: Path) -> None:
    with serving(tmp_path, "--no-haproxy") as machine:
        check_reach(machine)


def check_reach(machine: Machine) -> None:
    listening = machine.inside.listening()
    assert len(listening) > 8  # proxies, replicas, Ray
    reachable = machine.ask("ports", machine.inside.address, *map(str, listening))
    assert reachable == [PORT, GRPC_PORT]
    assert {port for port, at in listening.items() if at & PUBLIC} == {PORT, GRPC_PORT}
    page = machine.get("/v1/models")
    assert page["status"] == 200, page
    assert [model["id"] for model in json.loads(page["body"])["data"]] == [DEMO]
    assert machine.get("/v1/models", key="")["status"] == 401
    address = f"{machine.inside.address}:{GRPC_PORT}"
    assert machine.ask("live", address) == "UNAUTHENTICATED"
    assert machine.ask("live", address, KEY)


def test_a_client_that_came_too_early_was_told_to_wait(machine: Machine) -> None:
    *early, ready = machine.while_starting
    assert ready[1] == 200
    told = [answer for answer in early if answer[1] != 0]  # 0: nobody listened yet
    assert told
    for _, status, body in told:
        assert (status, body) in {(503, text(Family.OPENAI, each)) for each in (STARTING, UNREADY)} | {
            (200, ready[2])
        }


def text(family: Family, error: ServeError) -> str:
    return render_error(family, error).body.decode()


def test_haproxy_that_is_killed_is_back_at_once_with_all_it_served(machine: Machine) -> None:
    watch = machine.watch("/v1/models")
    assert watch.stdout is not None
    json.loads(watch.stdout.readline())
    (haproxy,) = machine.named("haproxy")
    haproxy.kill()
    haproxy.wait(WAIT_S)
    until(lambda: machine.named("haproxy") and machine.get("/v1/models")["status"] == 200)
    # Refused or cut, and never a wrong answer.
    assert {status for _, status, _ in so_far(watch)} <= {0, 200}
    assert machine.named("haproxy") != [haproxy]


@pytest.mark.full  # tests/unit/deployments/proxy has the answers
def test_while_a_gateway_is_replaced_every_protocol_waits_or_says_so_in_its_own_words(
    machine: Machine,
) -> None:
    paths = {
        Family.OPENAI: "/v1/models",
        Family.OVMS: "/v3/models",
        Family.MINDIE: "/mindie/v1/models",
        Family.DATABRICKS: "/databricks/v1/models",
        Family.TRITON: "/v2/health/ready",
    }
    watches = {family: machine.watch(path) for family, path in paths.items()}
    for watch in watches.values():
        assert watch.stdout is not None
        watch.stdout.readline()
    (gateway,) = machine.named("ray::ServeReplica:system:Gateway")
    gateway.kill()
    gateway.wait(WAIT_S)
    for path in paths.values():
        until(lambda path=path: machine.get(path)["status"] == 200)  # type: ignore[misc]
    for family, watch in watches.items():
        answers = so_far(watch)
        told = {(status, body) for _, status, body in answers if status not in (0, 200)}
        assert told <= {(503, text(family, UNREADY)), (503, text(family, LOST))} | not_ready(answers), family


def not_ready(answers: list[Any]) -> set[tuple[int, str]]:
    """What the new gateway itself says until it has found its models."""
    return {(status, body) for _, status, body in answers if status in (400, 503) and "demo-chat" in body}


@pytest.mark.full  # tests/unit/deployments/proxy/test_slow_clients.py has them
def test_clients_with_half_a_header_keep_nobody_out_and_are_cut(machine: Machine) -> None:
    """As many as filled HAProxy for an hour."""
    slow = machine.start("half", machine.inside.address, str(PORT), str(SLOW))
    assert slow.stdout is not None
    assert int(slow.stdout.readline()) > SLOW // 2
    began = time.monotonic()
    assert machine.get("/v1/models")["status"] == 200  # from the same address
    print("a good client waited", time.monotonic() - began, "s")
    url = f"http://127.0.0.1:{PORT}/v1/models"
    own = machine.inside.run(sys.executable, "-m", "tests.support.outside", "get", url, KEY)
    assert json.loads(own)["status"] == 200
    out, _ = slow.communicate(timeout=240)
    ended = json.loads(out)
    assert ended["left"] == 0
    assert ended["seconds"] < 60  # ten for the last of them


def test_a_launcher_that_is_killed_leaves_nothing(machine: Machine) -> None:
    """Last in this file. Its guardian ends the rest, HAProxy too, which has no tie to whoever started it."""
    assert machine.named("haproxy")
    machine.launcher.kill()
    machine.launcher.wait()
    until(lambda: not machine.inside.processes())
    assert not machine.inside.listening()
