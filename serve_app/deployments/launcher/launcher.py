"""The foreground process of `serve-app serve`: from a deploy file to an endpoint that answers.

    Launcher(Options(Path("deploy/local.yaml"))).run()

This process only watches the others and relays signals; it is the only one that gets the terminal's signals.
Ctrl-C or SIGTERM lets running answers finish; a second signal ends everything at once. Ray and all other
processes are descendants of the guardian, which ends them when this process dies for any reason. `serve run
deploy/local.yaml` works as well, but then the caller has to set up the environment.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import time
from typing import Final

from serve_app.deployments import environment
from serve_app.deployments.launcher.guardian import guard
from serve_app.deployments.launcher.server import Options, Server
from serve_app.deployments.launcher.terminal import complain, restore, say
from serve_app.deployments.processes import adopt_orphans, end_descendants, fork, reap

STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME_S: Final = 0.25  # `make` and `timeout` repeat a signal that the whole group has received
SLACK_S: Final = 60.0  # beyond the grace, for a server that does not end


class Launcher:
    """The foreground process, and its connections to the guardian and the server."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._folder = environment.private_folder()
        environment.keep_from_cleaners(self._folder)  # until this process ends
        self._woken, wake = os.pipe()  # bytes are the numbers of signals
        for fd in (self._woken, wake):
            os.set_blocking(fd, False)
        # Before anything is started, so that no signal is lost. Signals that were ignored before, such as
        # SIGINT in a background job, are obeyed, except SIGHUP under nohup.
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        for each in (*STOPS, signal.SIGCHLD):
            if not (each == signal.SIGHUP and signal.getsignal(each) == signal.SIG_IGN):
                signal.signal(each, lambda *_: None)
        self._stopped_at: float | None = None
        self._deadline: float | None = None

    def run(self) -> int:
        """Run until every process that this one started has ended."""
        adopt_orphans()  # for the case that the guardian is killed
        reading, self._lifeline = os.pipe()
        self._link, other = socket.socketpair()

        def guardian() -> int:
            os.close(self._lifeline)
            self._link.close()
            return guard(reading, self._folder, lambda: Server(self._options, self._folder, other).run())

        pid = fork(guardian)
        os.close(reading)
        other.close()
        status = None
        while status is None:
            self._wait()
            status = reap(pid)
        for name in end_descendants():
            complain(f"process {name} does not end; the kernel holds it")
        shutil.rmtree(self._folder, ignore_errors=True)
        restore()
        if os.WIFSIGNALED(status):
            complain(f"the guardian was killed by signal {os.WTERMSIG(status)}; all of the server is stopped")
            return 1
        if self._stopped_at is not None:
            say("stopped")
            return 0
        return os.WEXITSTATUS(status)

    def _wait(self) -> None:
        """Wait for the end of a child, and meanwhile act on signals."""
        timeout = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        ready, _, _ = select.select([self._woken], [], [], timeout)
        if not ready:
            complain("the server does not come to its end; stopping it at once")
            self._end()
            return
        numbers = os.read(self._woken, 4096)
        if not any(each in STOPS for each in numbers):
            return
        now = time.monotonic()
        if self._stopped_at is None:
            self._stopped_at = now
            self._stop(now)
        elif now - self._stopped_at > SAME_S:
            say("stopping at once ...")
            self._end()

    def _stop(self, now: float) -> None:
        """Stop gently if the server is ready; otherwise give up the start."""
        said = b""
        with contextlib.suppress(BlockingIOError):
            said = self._link.recv(65_536, socket.MSG_DONTWAIT)
        restore()
        say("stopping ...")
        if said.startswith(b"ready "):
            with contextlib.suppress(OSError):  # it is ending by itself
                self._link.sendall(b"stop\n")
            self._deadline = now + float(said.split()[-1]) + SLACK_S
        else:
            self._end()

    def _end(self) -> None:
        """Make the guardian kill everything."""
        self._deadline = None
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
