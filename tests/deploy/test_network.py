"""One server started by the launcher for other machines, and what those can do to it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil
import pytest
import yaml

from tests.deploy import fake_model
from tests.deploy.deployment import DEMO, alone, app_of, deploy_file
from tests.network import Namespace, two_networks
from tests.ray_cluster import ROOT

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]

START_S: Final = 180.0
PORT: Final = 8000
GRPC_PORT: Final = 8001
KEY: Final = "sk-" + 43 * "x"
PUBLIC: Final = {"00000000", 32 * "0"}  # every interface


@dataclass
class Machine:
    """The server's network, that of its clients, and what the server says."""

    inside: Namespace
    outside: Namespace
    said: Path

    def ask(self, *words: str) -> Any:
        """An answer of `tests.outside` from the other machine."""
        return json.loads(self.outside.run(sys.executable, "-m", "tests.outside", *words))

    def get(self, path: str, key: str = KEY) -> Any:
        return self.ask("get", f"http://{self.inside.address}:{PORT}{path}", key)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("machine")
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
        command = inside.command(sys.executable, "-m", "serve_app.deployments.serve", str(file))
        process = subprocess.Popen(command, env=environ, cwd=folder, stdout=out, stderr=subprocess.STDOUT)
        try:
            until_said("ready on", said, process)
            yield Machine(inside, outside, said)
        finally:
            process.kill()
            process.wait()
            while found := inside.processes():
                for each in found:
                    each.kill()
                psutil.wait_procs(found, timeout=5)


def until_said(text: str, said: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while text not in said.read_text():
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.2)


def test_another_machine_reaches_http_and_grpc_with_a_key_and_no_other_port(machine: Machine) -> None:
    listening = machine.inside.listening()
    assert len(listening) > 10  # HAProxy, Serve, Ray
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
