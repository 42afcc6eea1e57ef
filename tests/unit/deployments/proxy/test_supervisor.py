"""HAProxy as Ray starts, reloads and stops it, and as it dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from serve_app.deployments.proxy.supervisor import Command
from tests.support.haproxy import WAIT_S, Front, Replica, front, replica


@pytest.fixture
def gateway() -> Iterator[Replica]:
    with replica() as one:
        yield one


@pytest.fixture
def server(gateway: Replica) -> Iterator[Front]:
    with front(servers=[gateway.port]) as made:
        yield made


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_gone(process: psutil.Process) -> bool:
    """Whether it has ended; nobody may wait for one whose parent has gone first."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def answers(server: Front) -> bool:
    try:
        return httpx.get(f"{server.url}/x", timeout=WAIT_S).text == "/x"
    except httpx.HTTPError:
        return False


@pytest.mark.parametrize(
    "name",
    [
        signal.SIGKILL,
        signal.SIGUSR1,
        *(pytest.param(other, marks=pytest.mark.full) for other in (signal.SIGSEGV, signal.SIGTERM)),
    ],
)
def test_haproxy_that_dies_unasked_is_back_and_ray_does_not_notice(server: Front, name: int) -> None:
    for _ in range(2):
        dead = server.haproxy()
        dead.send_signal(name)
        dead.wait(WAIT_S)
        until(lambda: answers(server))
        until(lambda: server.pid() == server.started[-1].pid)
        assert server.haproxy().pid != dead.pid
    assert server.started[-1].poll() is None
    assert "died unasked" in server.said()
    server.reload()  # which Ray asks of the process that it knows
    assert answers(server)


def test_a_reload_cuts_no_answer_and_the_old_one_goes_when_it_is_through(server: Front) -> None:
    lines: list[str] = []
    with httpx.stream("GET", f"{server.url}/stream/20/0.1", timeout=WAIT_S) as answer, replica() as other:
        coming = answer.iter_lines()
        lines.append(next(coming))
        first = server.haproxy()
        server.reload(servers=[other.port])
        assert server.haproxy().pid != first.pid
        assert server.started[0].poll() is None  # drains
        assert answers(server)
        lines.extend(coming)
    assert lines == [str(number) for number in range(20)]
    assert server.started[0].wait(WAIT_S) == 0
    until(lambda: is_gone(first))


def test_no_request_is_refused_while_configurations_change(server: Front) -> None:
    failed: list[object] = []
    done = threading.Event()

    def keep_asking() -> None:
        while not done.is_set():
            if not answers(server):
                failed.append(time.monotonic())

    asking = threading.Thread(target=keep_asking)
    asking.start()
    for _ in range(5):
        server.reload()
    done.set()
    asking.join()
    assert not failed


def test_a_killed_supervisor_takes_haproxy_along(server: Front) -> None:
    child = server.haproxy()
    server.started[-1].kill()  # how Ray stops it
    server.started[-1].wait()
    until(lambda: is_gone(child))
    assert not answers(server)


def test_a_supervisor_ends_with_the_process_that_started_it(server: Front) -> None:
    program = "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); p.wait()"
    wrapper = server.wrapper
    server.stop()
    parent = subprocess.Popen(
        [sys.executable, "-c", program, wrapper, "-db", "-f", str(server.folder / "haproxy.cfg"), "-dR"],
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None
    supervisor = psutil.Process(int(parent.stdout.readline()))
    until(lambda: answers(server))
    (child,) = supervisor.children()
    parent.kill()
    parent.wait()
    until(lambda: is_gone(supervisor))
    until(lambda: is_gone(child))


def test_a_configuration_that_haproxy_refuses_ends_the_start_with_the_reason(server: Front) -> None:
    """The old one goes on, as Ray expects of it."""
    file = server.folder / "haproxy.cfg"
    file.write_text(file.read_text().replace("balance leastconn", "balance nothing"))
    options = ["-db", "-f", str(file), "-dR", "-sf", str(server.started[-1].pid), "-x", "any"]
    done = subprocess.run([server.wrapper, *options], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode != 0
    assert "balance" in done.stderr
    assert server.pid() == server.started[-1].pid
    assert answers(server)
    file.write_text("global\n")
    done = subprocess.run([server.wrapper, *options], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 1
    assert "admin socket" in done.stderr
    assert answers(server)


def test_it_leaves_no_files_of_those_that_ended(server: Front) -> None:
    for _ in range(3):
        server.reload()
    until(lambda: all(each.poll() is not None for each in server.started[:-1]))
    pid = server.started[-1].pid
    left = {
        path.name for path in server.folder.iterdir() if path.name.startswith(("own.", "running.", "relay."))
    }
    assert left == {f"own.{pid}", f"running.{pid}.cfg"}


def test_it_is_small(server: Front) -> None:
    """It lives beside every HAProxy, those that drain too."""
    supervisor = psutil.Process(server.started[-1].pid)
    assert supervisor.memory_info().rss < 40 * 2**20
    assert supervisor.num_threads() == 1
    modules = Path(f"/proc/{supervisor.pid}/maps").read_text()
    assert "torch" not in modules
    assert "ray" not in {os.path.basename(line.split()[-1]) for line in modules.splitlines()}


def test_the_command_line_of_ray_is_understood() -> None:
    command = Command.parse(["-db", "-f", "/a/b.cfg", "-dR", "-sf", "12", "13", "-x", "/a/admin.sock"])
    assert command == Command(Path("/a/b.cfg"), (12, 13), True, ("-db", "-dR"))
    assert Command.parse(["-f", "c"]) == Command(Path("c"))
    with pytest.raises(ValueError, match="-f"):
        Command.parse(["-db"])
