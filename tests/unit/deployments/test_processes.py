"""A tree of real processes, of which some cut every tie, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from serve_app.deployments.launcher.graceful_stop import unsent

# A daemon: a session of its own, a dead parent, no signals, and a child that starts more.
DAEMON = """
import os, signal, sys, time
for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(each, signal.SIG_IGN)
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
while True:
    if os.fork() == 0:
        open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
        time.sleep(600)
    time.sleep(0.05)
"""
# A child that looks for its parent's end only when that has come. It says so if it lives on.
LATE = """
import os, sys, time
from importlib import import_module
die = getattr(import_module(sys.argv[1]), sys.argv[2])
parent = os.getpid()
if os.fork(): os._exit(0)
while os.getppid() == parent:
    time.sleep(0.01)
die(parent)
print("lives", flush=True)
"""

# As the launcher does it: a lifeline, a guardian, and a server that starts the daemon.
LAUNCHER = """
import os, signal, subprocess, sys, time
from pathlib import Path
from serve_app.deployments.launcher.guardian import guard
from serve_app.deployments.processes import adopt_orphans, end_descendants, fork, reap
reading, writing = os.pipe()
def server():
    subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[2]])
    while not os.path.exists(sys.argv[2] + ".go"):
        time.sleep(0.02)
    {server}
def guardian():
    os.close(writing)
    return guard(reading, Path(sys.argv[3]), server)
adopt_orphans()
pid = fork(guardian)
os.close(reading)
print(pid, flush=True)
status = None
while status is None:
    time.sleep(0.02)
    status = reap(pid)
left = end_descendants()
sys.exit(len(left) or os.waitstatus_to_exitcode(status) % 256)
"""


def launch(tmp_path: Path, server: str) -> tuple[subprocess.Popen[str], int, Path]:
    """The launcher, its guardian's id, and the file where the daemon writes ids down, once some are."""
    pids, folder = tmp_path / "pids", tmp_path / "folder"
    folder.mkdir()
    text = LAUNCHER.replace("{server}", server)
    process = subprocess.Popen(
        [sys.executable, "-c", text, DAEMON, str(pids), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    guardian = int(process.stdout.readline())
    until(lambda: pids.exists() and len(pids.read_text().splitlines()) > 3)
    return process, guardian, pids


def until(true: object) -> None:
    deadline = time.monotonic() + 60
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def none_lives(pids: Path) -> bool:
    return not any(psutil.pid_exists(int(line)) for line in pids.read_text().splitlines())


@pytest.mark.parametrize("how", ["launcher", "guardian", "group"])
def test_nothing_outlives_a_launcher_that_is_killed(how: str, tmp_path: Path) -> None:
    process, guardian, pids = launch(tmp_path, "time.sleep(600)")
    if how == "group":
        os.killpg(process.pid, signal.SIGKILL)
    else:
        os.kill(process.pid if how == "launcher" else guardian, signal.SIGKILL)
    process.wait(60)
    until(lambda: none_lives(pids) and not psutil.pid_exists(guardian))
    assert how == "guardian" or not (tmp_path / "folder").exists()


@pytest.mark.parametrize(
    ("server", "status"), [("return 0", 0), ("return 3", 1), ("return 7", 1), ("os.kill(os.getpid(), 9)", 1)]
)
def test_a_server_that_ends_takes_all_with_it(server: str, status: int, tmp_path: Path) -> None:
    process, _, pids = launch(tmp_path, server)
    pids.with_name("pids.go").touch()
    assert process.wait(60) == status
    assert none_lives(pids)
    assert not (tmp_path / "folder").exists()


def test_bytes_that_clients_have_not_taken_are_counted_by_port() -> None:
    table = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
        "   0: 0100007F:1F40 00000000:0000 0A 00000000:00000005 00:00000000 00000000     0\n"
        "   1: 0100007F:1F40 0100007F:C350 01 00000010:00000000 00:00000000 00000000     0\n"
        "   2: 0100007F:1F41 0100007F:C351 01 00000020:00000000 00:00000000 00000000     0\n"
        "   3: 0100007F:1F40 0100007F:C352 06 00000040:00000000 00:00000000 00000000     0\n"
    )
    assert unsent(table, {8000}) == 16
    assert unsent(table, {8000, 8001}) == 48
    assert unsent(table, {80}) == 0


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("serve_app.deployments.processes", "die_with_parent"),
        ("serve_app.deployments.proxy.supervisor", "_die_with"),
    ],
)
def test_a_child_dies_with_a_parent_that_died_before_it_asked_for_that(module: str, name: str) -> None:
    # The pipe ends when nobody holds it any more, so the child has ended too.
    command = [sys.executable, "-c", LATE, module, name]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
    assert done.stdout == b""
