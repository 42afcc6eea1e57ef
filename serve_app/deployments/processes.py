"""Process trees that can be ended as a whole, whatever their processes do.

A subreaper inherits the orphans among its descendants, so even a detached daemon becomes its child and is
found. Deals only with processes; depends neither on Ray nor on the purpose of the processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Final, NoReturn

import psutil

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
END_S: Final = 30.0  # a process that is still there then hangs in the kernel
POLL_S: Final = 0.02


def adopt_orphans() -> None:
    """Make this process adopt descendants whose own parent dies (on Linux; elsewhere nothing is done)."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Make the kernel end this process if its parent dies (Linux; elsewhere only if it is already dead).

    `parent`: the parent's process id, which was read before this process began. The kernel does not report a
    death that happened before this call, so this process checks once by itself.
    """
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def fork(work: Callable[[], int]) -> int:
    """Fork a child that runs `work` and exits with its result; returns the child's process id.

    The child exits without the clean-up of this process. No other thread may be running in this process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    return pid or _child(work)


def _child(work: Callable[[], int]) -> NoReturn:
    code = 1
    try:
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):  # the terminal may be gone
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def reap(child: int | None = None) -> int | None:
    """Reap every child that has ended. Returns the wait status of `child` if it was among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == child:
            found = status


def end_descendants(timeout_s: float = END_S) -> list[str]:
    """Kill all descendants, and any that they start in the meantime. Returns the names of survivors."""
    deadline = time.monotonic() + timeout_s
    while True:
        reap()
        alive = psutil.Process().children(recursive=True)
        if not alive:
            return []
        if time.monotonic() > deadline:
            return [f"{each.pid} ({_name(each)})" for each in alive]
        for each in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        time.sleep(POLL_S)


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return "?"


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
