"""A server's processes: started, waited for, measured and stopped, until none of them is left.

Every process that a server starts inherits a mark in its environment, so that also those that left the
server's process group are found. Nothing without the mark is ever signalled.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from benchmarks.peers.peer import Command

MARK: Final = "BENCHMARK_PEER"
STOP_S: Final = 60.0  # for a server to end by itself after SIGTERM
KILL_S: Final = 20.0
POLL_S: Final = 0.2


class StartError(Exception):
    """A server that ended or did not become ready, with the end of its log."""


class LeftoverError(Exception):
    """Processes of a server that outlived SIGKILL."""


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    mark: str
    ready_s: float  # from the start of the command to the first good answer

    def freeze(self) -> None:
        """Stop all its processes where they are: they keep their memory and use no processor."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let its processes go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in marked(self.mark):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def memory_mib(self) -> float:
        """Proportional set size of all its processes: shared pages are counted once."""
        total = 0
        for process in marked(self.mark):
            with contextlib.suppress(psutil.Error, OSError):
                total += process.memory_full_info().pss
        return total / 2**20


def marked(mark: str) -> list[psutil.Process]:
    """Living processes with this mark."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@contextlib.contextmanager
def running(command: Command, ready_url: str, timeout_s: float, log: Path) -> Iterator[Running]:
    """A server by `command`, from its first good answer on; afterwards none of its processes is left.

    Raises StartError when it does not answer in time, LeftoverError when a process cannot be ended.
    """
    mark = uuid.uuid4().hex
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        began = time.monotonic()
        process = subprocess.Popen(
            command.argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **command.environment, MARK: mark},
        )
        try:
            wait_ready(process, ready_url, timeout_s, log)
            yield Running(mark, time.monotonic() - began)
        finally:
            stop(process, mark)


def wait_ready(process: subprocess.Popen[bytes], url: str, timeout_s: float, log: Path) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise StartError(f"it ended with {process.returncode}: {last_lines(log)}")
        with contextlib.suppress(OSError):  # also of a status that is no 2xx
            urllib.request.urlopen(url, timeout=2).close()
            return
        time.sleep(POLL_S)
    raise StartError(f"not ready after {timeout_s:.0f} s: {last_lines(log)}")


def last_lines(log: Path, count: int = 3, width: int = 200) -> str:
    """The end of a log in one line."""
    lines = [line.strip() for line in log.read_text("utf-8", errors="replace").splitlines()]
    return " / ".join(line[-width:] for line in lines if line)[-count * width :]


def stop(process: subprocess.Popen[bytes], mark: str) -> None:
    """SIGTERM for the server alone, then SIGKILL for whatever of it is left."""
    Running(mark, 0.0).thaw()  # a frozen process does not see SIGTERM
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
    wait_gone(mark, STOP_S / 6)
    for left in marked(mark):
        with contextlib.suppress(psutil.NoSuchProcess):
            left.send_signal(signal.SIGKILL)
    process.wait(KILL_S)
    if not wait_gone(mark, KILL_S):
        raise LeftoverError(f"processes are left: {[left.pid for left in marked(mark)]}")


def wait_gone(mark: str, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while marked(mark):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
