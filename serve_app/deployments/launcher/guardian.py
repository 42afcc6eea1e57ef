"""The guardian: a process in its own session that is the ancestor of all others, and ends them.

The guardian reaps its children. It ends when the server's process has ended, when the launcher tells it to,
or when the launcher is gone for any reason. No process of the tree outlives the guardian. The terminal's
signals do not reach the guardian's session, so only the launcher reacts to them.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Final

from serve_app.deployments.launcher.terminal import complain
from serve_app.deployments.processes import (
    adopt_orphans,
    die_with_parent,
    end_descendants,
    fork,
    reap,
)

SAID: Final = 3  # exit status of a server that printed why it ended; any other is unexpected
_KEPT: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)


def guard(launcher: int, folder: Path, server: Callable[[], int]) -> int:
    """Run `server` in a child until it ends, or until `launcher` gets a byte or is closed. Returns 0 or 1.

    `launcher`: the file descriptor of the reading end of a pipe whose only writer is the launcher.
    `folder`: removed at the end, with the sockets of the server.
    """
    os.setsid()
    adopt_orphans()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    for each in _KEPT:
        signal.signal(each, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())

    guardian = os.getpid()

    def run() -> int:
        signal.set_wakeup_fd(-1)
        for fd in (launcher, woken, wake):
            os.close(fd)
        for each in (*_KEPT, signal.SIGCHLD):
            signal.signal(each, signal.SIG_DFL)
        die_with_parent(guardian)
        return server()

    child = fork(run)
    status = None
    while status is None:
        ready, _, _ = select.select([launcher, woken], [], [])
        if launcher in ready:
            break
        os.read(woken, 4096)
        status = reap(child)
    for name in end_descendants():
        complain(f"process {name} does not end; the kernel holds it")
    shutil.rmtree(folder, ignore_errors=True)
    return 0 if status is None else _verdict(child, status)


def _verdict(server: int, status: int) -> int:
    """The exit status. `server`: the server's process, whose id is in the name of Ray's folder."""
    if status == 0:
        return 0
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == SAID:
        return 1
    if os.WIFSIGNALED(status):
        how = f"was killed by signal {os.WTERMSIG(status)}"
    else:
        how = f"ended with status {os.WEXITSTATUS(status)}"
    complain(
        f"the process that holds the Ray cluster {how}. All of it is stopped; start it again. "
        f"Ray's logs are in /tmp/ray/session_*_{server}/logs, and `dmesg` tells whether memory ran out."
    )
    return 1
