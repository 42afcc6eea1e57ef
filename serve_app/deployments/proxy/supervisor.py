"""The program that Ray starts as its HAProxy. It keeps the real HAProxy running as long as Ray wants one.

    supervisor.py BINARY SETTINGS -db -f CONFIG [-dR] [-x SOCKET] [-sf PID...]

Ray starts a supervisor for each version of the configuration. The new HAProxy takes over the listening
sockets of the former HAProxy (`-x`), which then drains (`-sf`). Ray identifies a HAProxy by its process id,
so each HAProxy has one supervisor for its whole life. The supervisor restarts HAProxy if it dies
unexpectedly, passes signals on, and ends with HAProxy when Ray requests an end. HAProxy dies with its
supervisor, and the supervisor dies with the Ray process that started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, Self

from serve_app.deployments.proxy.haproxy_config import adapted, admin_socket
from serve_app.deployments.proxy.relay import Relay, ask
from serve_app.deployments.proxy.settings import HaproxySettings

START_S: Final = 20.0  # Ray gives up after 30
LOOK_S: Final = 0.02  # between two checks of a starting HAProxy
WATCH_S: Final = 1.0  # between two checks of the parent process
PAUSE_S: Final = (0.0, 0.1, 0.2, 0.5)  # before HAProxy is started again, by how often it died at once
STEADY_S: Final = 5.0  # a HAProxy that lived for this long did not die at once

_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True)
class Command:
    """HAProxy's command line, as Ray writes it. Options that are not named here are passed on."""

    config: Path
    before: tuple[int, ...] = ()  # the supervisors of each HAProxy that is to drain
    takes_sockets: bool = False  # from the first of them
    options: tuple[str, ...] = ()

    @classmethod
    def parse(cls, argv: Sequence[str]) -> Self:
        """Raises ValueError for a command line without a configuration."""
        config, before, takes, options = None, [], False, []
        rest = list(argv)
        while rest:
            option = rest.pop(0)
            if option == "-f" and rest:
                config = Path(rest.pop(0))
            elif option in ("-sf", "-st"):
                while rest and rest[0].isdigit():
                    before.append(int(rest.pop(0)))
            elif option == "-x" and rest:
                rest.pop(0)
                takes = True
            else:
                options.append(option)
        if config is None:
            raise ValueError("no configuration is named (-f)")
        return cls(config, tuple(before), takes, tuple(options))


class Supervisor:
    """One HAProxy and its supervising process, which Ray takes for HAProxy."""

    def __init__(self, binary: str, settings: HaproxySettings, command: Command) -> None:
        """Reads the configuration. Raises OSError; raises ValueError for text unlike Ray's."""
        text = command.config.read_text()
        self._command = command
        self._path = Path(admin_socket(text))
        self._admin = _admin_of(self._path, os.getpid())
        # A copy: Ray writes the next version to the same path, and may fail to start it.
        self._config = _config_of(command.config, os.getpid())
        former = "".join(_text_of(_config_of(command.config, pid)) for pid in command.before[:1])
        self._config.write_text(adapted(text, settings, str(self._admin), former))
        self._binary = binary
        self._parent = os.getppid()
        self._is_retired = False  # set once Ray has asked HAProxy to end
        self._wanted: list[int] = []  # signals to pass on

    def run(self) -> int:
        """Runs until Ray no longer needs HAProxy. Returns HAProxy's exit status."""
        wake, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for name in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(name, self._note)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        try:
            sockets = self._sockets_of_the_one_before()
            process = self._start(*sockets)
            if not self._answers(process):
                return process.wait() or 1  # HAProxy's output says why, and Ray reads it
            relay = Relay(self._path, self._admin)
            for pid in self._command.before:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGUSR1)
            return self._keep(process, relay, wake)
        finally:
            for path in (self._config, self._admin):
                path.unlink(missing_ok=True)

    def _keep(self, process: subprocess.Popen[bytes], relay: Relay, wake: int) -> int:
        started, deaths = time.monotonic(), 0
        while True:
            ready, _, _ = select.select([relay.fileno(), wake], [], [], WATCH_S)
            if wake in ready:
                os.read(wake, 4_096)
            if relay.fileno() in ready:
                relay.answer()
            if os.getppid() != self._parent:
                process.kill()
                return process.wait()
            while self._wanted:
                process.send_signal(self._wanted.pop(0))
            status = process.poll()
            if status is None:
                continue
            if self._is_retired:
                return max(status, 0)
            deaths = 0 if time.monotonic() - started > STEADY_S else deaths + 1
            with contextlib.suppress(OSError):  # a full disk must not end the supervisor
                print(f"HAProxy died unasked ({status}) and is started again", file=sys.stderr, flush=True)
            time.sleep(PAUSE_S[min(deaths, len(PAUSE_S) - 1)])
            process, started = self._start(), time.monotonic()

    def _start(self, *options: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [self._binary, "-f", str(self._config), *self._command.options, *options],
            preexec_fn=partial(_die_with, os.getpid()),  # one thread: nothing else can hold a lock
        )

    def _sockets_of_the_one_before(self) -> list[str]:
        if not (self._command.takes_sockets and self._command.before):
            return []
        admin = _admin_of(self._path, self._command.before[0])
        return ["-x", str(admin)] if admin.exists() else []

    def _answers(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait until HAProxy answers at its admin socket; returns False if it ends instead."""
        deadline = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < deadline and os.getppid() == self._parent:
            with contextlib.suppress(OSError):
                if ask(self._admin, b"show info\n"):
                    return True
            time.sleep(LOOK_S)
        process.kill()
        return False

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._is_retired = self._is_retired or number != signal.SIGHUP
        self._wanted.append(number)


def _admin_of(path: Path, pid: int) -> Path:
    """The path of HAProxy's own admin socket under supervisor `pid`; `path` is the one that Ray uses."""
    return path.with_name(f"own.{pid}")


def _config_of(path: Path, pid: int) -> Path:
    """The path of HAProxy's configuration under supervisor `pid`; `path` is the file that Ray writes."""
    return path.with_name(f"running.{pid}.cfg")


def _text_of(path: Path) -> str:
    """The text of a file; empty if the file is gone, because its supervisor has ended."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def _die_with(parent: int) -> None:
    """Make the kernel end this process when `parent` dies. The kernel does not report a death that happened
    before this call."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def main(argv: Sequence[str]) -> int:
    try:
        binary, settings, *command = argv
        return Supervisor(binary, HaproxySettings.read(Path(settings)), Command.parse(command)).run()
    except (OSError, ValueError) as error:
        print(f"HAProxy cannot be started: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
