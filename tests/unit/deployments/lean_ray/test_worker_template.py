"""Copies of the template in place of fresh interpreters: what becomes one, and what is a copy's own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serve_app.deployments.lean_ray import worker_entry, worker_template

ROOT = Path(__file__).resolve().parents[4]
WAIT_S = 120.0

# As the server's process does it: the template, before Ray is imported.
SERVER = """
import os, sys
from pathlib import Path
from serve_app.deployments.lean_ray import worker_template
worker_template.start(Path(sys.argv[1]))
print("up", flush=True)
sys.stdin.read()
"""

# In place of Ray's program for a worker.
WORKER = """
import json, os, sys, uuid
import ray._raylet
found = {
    "argv": sys.argv[1:],
    "name": __name__,
    "pid": os.getpid(),
    "parent": os.getppid(),
    "folder": os.getcwd(),
    "word": os.environ.get("WORD"),
    "id": ray._raylet.WorkerID.from_random().hex(),
    "uuid": uuid.uuid4().hex,
    "number": __import__("numpy").random.random(),
    "threads": len(os.listdir("/proc/self/task")),
    "loaded": sorted({"torch", "transformers", "serve_app"} & sys.modules.keys()),
    "open": len(os.listdir("/proc/self/fd")),
}
print(json.dumps(found), flush=True)
sys.exit(7)
"""

ORDINARY = "import json, sys; print(json.dumps({'ordinary': sys.argv[1:]}))"


def context(**changes: Any) -> str:
    return "--serialized-runtime-env-context=" + json.dumps(
        {"command_prefix": [], "env_vars": {}, "py_executable": sys.executable, "java_jars": []} | changes
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a process with a template."""
    folder = tmp_path_factory.mktemp("template")
    (folder / "worker.py").write_text(WORKER)
    (folder / "ordinary.py").write_text(ORDINARY)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    (folder / "pid").write_text(str(process.pid))
    yield folder
    process.communicate("", timeout=WAIT_S)


def start(folder: Path, *arguments: str, socket: str | None = None, **environment: str) -> dict[str, Any]:
    """What a worker says that Ray would start with `arguments`."""
    path = str(folder / worker_template.SOCKET_FILE) if socket is None else socket
    own = {worker_entry.SOCKET: path, worker_entry.ORDINARY: str(folder / "ordinary.py")}
    done = subprocess.run(
        [sys.executable, worker_entry.__file__, *arguments],
        env=os.environ | own | environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        timeout=WAIT_S,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)  # the pipe ends with the worker
    return found


def test_a_copy_is_the_worker_that_ray_asked_for(server: Path) -> None:
    program = str(server / "worker.py")
    found = start(server, program, "--node-id=1", context(), "--language=PYTHON", "--last=2", WORD="here")
    assert found["argv"] == ["--node-id=1", "--last=2"]
    assert found["name"] == "__main__"
    assert found["folder"] == str(server)
    assert found["word"] == "here"
    assert found["threads"] == 1
    assert found["open"] <= 6  # its streams and what reads the folder; nothing of the server
    assert found["loaded"] == ["serve_app"]  # gateways have no torch


def test_copies_draw_ids_and_numbers_of_their_own(server: Path) -> None:
    program = str(server / "worker.py")
    one, other = (start(server, program, context(), "--language=PYTHON") for _ in range(2))
    for name in ("pid", "id", "uuid", "number"):
        assert one[name] != other[name], name
    assert one["parent"] == other["parent"] != int((server / "pid").read_text())


@pytest.mark.parametrize(
    "changed",
    [
        {"env_vars": {"LD_PRELOAD": "x.so"}},
        {"py_executable": "/usr/bin/another"},
        {"command_prefix": ["numactl"]},
        {"override_worker_entrypoint": "other.py"},
    ],
)
def test_a_worker_with_an_environment_of_its_own_starts_anew(server: Path, changed: dict[str, Any]) -> None:
    arguments = (str(server / "worker.py"), context(**changed), "--language=PYTHON")
    assert start(server, *arguments) == {"ordinary": list(arguments)}


@pytest.mark.parametrize("arguments", [("worker.py", "--language=JAVA"), ("program",), ()])
def test_what_is_no_worker_of_python_starts_anew(server: Path, arguments: tuple[str, ...]) -> None:
    assert start(server, *arguments) == {"ordinary": list(arguments)}


def test_without_a_template_workers_start_anew(tmp_path: Path) -> None:
    (tmp_path / "ordinary.py").write_text(ORDINARY)
    for socket in (str(tmp_path / "none.sock"), ""):
        arguments = ["worker.py", context(), "--language=PYTHON"]
        assert start(tmp_path, *arguments, socket=socket) == {"ordinary": arguments}


def test_copies_that_ended_are_no_zombies(server: Path) -> None:
    found = start(server, str(server / "worker.py"), context(), "--language=PYTHON")
    deadline = time.monotonic() + WAIT_S
    while Path(f"/proc/{found['pid']}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_copy_that_nobody_waits_for_ends_before_it_is_a_worker(server: Path) -> None:
    """`worker_entry` that gave up has started the worker itself; two of one id would be one too many."""
    import socket

    said = server / "said.txt"
    program = server / "late.py"
    program.write_text(f"open({str(said)!r}, 'w').write('it runs')")
    request = {"arguments": [str(program)], "environment": dict(os.environ), "folder": "/", "nice": 0}
    body = json.dumps(request | {"open_files": [256, 256]}).encode()
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(WAIT_S)
        link.connect(str(server / worker_template.SOCKET_FILE))
        socket.send_fds(link, [len(body).to_bytes(4, "big")], [0, 1, 2])
        link.sendall(body)
        assert link.recv(1) == worker_entry.COPIED
    # The template answers one after the other, and this answer comes from a later copy.
    start(server, str(server / "worker.py"), context(), "--language=PYTHON")
    assert not said.exists()


@pytest.mark.parametrize("garbage", [b"", b"\x00", b"\xff\xff\xff\xff{}", b"\x00\x00\x00\x02{}"])
def test_garbage_does_not_end_the_template(server: Path, garbage: bytes) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(server / worker_template.SOCKET_FILE))
        link.sendall(garbage)
    assert start(server, str(server / "worker.py"), context(), "--language=PYTHON")["name"] == "__main__"


def test_the_template_ends_with_the_server(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    (template,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    process.kill()
    process.wait(WAIT_S)
    deadline = time.monotonic() + WAIT_S
    while Path(f"/proc/{template}").exists() and _state(template) != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
