"""The command that serves, under a terminal of its own, and what is left of it afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import select
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
import yaml

from tests.deploy.deployment import START_S, Raw, app_of
from tests.support.invariants import WAIT_S
from tests.support.ray_cluster import ROOT, free_port

READY: Final = "Ctrl-C stops it."
# What a shell gives a command: a session, a group and a terminal.
_SHELL: Final = "import os, sys; os.login_tty(0); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
_TABLES: Final = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_LISTEN: Final = "0A"  # the kernel's number of that state
_MARK: Final = "SERVE_APP_TEST_COMMAND"  # in the environment of all that descends from one command
_TAIL: Final = 4_000  # characters of what a command said, beside a failure

Address = tuple[str, int]
Listening = dict[str, Address]  # socket, by the name that the kernel gives it -> where it listens


class Command:
    """One start of the command, on a pseudo-terminal."""

    def __init__(self, raw: Raw, folder: Path, *flags: str, **environ: str) -> None:
        """`raw`: a deploy file, of which ports and the journal's folder change."""
        folder.mkdir(parents=True, exist_ok=True)
        self.raw, self.port, self.grpc_port = raw, free_port(), free_port()
        self.usage = folder / "usage"
        raw["http_options"]["port"] = self.port
        app_of(raw, "system")["args"] = {
            **(app_of(raw, "system").get("args") or {}),
            "usage_dir": str(self.usage),
            "grpc_port": self.grpc_port,
        }
        self.file = folder / "deploy.yaml"
        self.file.write_text(yaml.safe_dump(raw))
        self._mark = uuid.uuid4().hex
        # As from a shell: none of what this process set for its own cluster.
        own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        own |= {"XDG_STATE_HOME": str(folder), "PYTHONPATH": str(ROOT), _MARK: self._mark}
        self.environ = own | environ
        self._said: list[bytes] = []
        self._terminal, inner = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SHELL, "-m", "serve_app.cli", "serve", str(self.file), *flags],
            env=self.environ,
            cwd=folder,
            stdin=inner,
            stdout=inner,
            stderr=inner,
        )
        os.close(inner)
        self._reading = threading.Lock()  # held between a read and what it adds to `_said`
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the last of its users closed the terminal
            while True:
                self._has_more(None)
                with self._reading:
                    data = os.read(self._terminal, 65_536)
                    self._said.append(data)
                if not data:
                    return

    def _is_read(self) -> bool:
        """Whether all that was written to the terminal until now is in `said`."""
        with self._reading:
            return not self._reader.is_alive() or not self._has_more(0)

    def _has_more(self, wait_ms: int | None) -> bool:
        """Whether there is something to read, or the end. `wait_ms`: for it; None: until there is."""
        poll = select.poll()
        poll.register(self._terminal, select.POLLIN)
        return bool(poll.poll(wait_ms))

    @property
    def said(self) -> str:
        return b"".join(self._said).decode("utf-8", "replace").replace("\r\n", "\n")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def until_said(self, text: str, timeout_s: float = START_S) -> None:
        async with asyncio.timeout(timeout_s):
            while text not in self.said:
                if self.process.poll() is not None:
                    await self._until_read()
                    assert text in self.said
                await asyncio.sleep(0.05)

    async def until_runs(self, name: str) -> psutil.Process:
        """The first process of the family that is called `name`."""
        async with asyncio.timeout(START_S):
            while not (found := [each for each in self.family() if _name_of(each) == name]):
                assert self.process.poll() is None
                await asyncio.sleep(0.02)
        return found[0]

    async def until_ready(self) -> None:
        await self.until_said(READY)

    def ctrl_c(self) -> None:
        """What the key does: the terminal signals its whole foreground group."""
        os.write(self._terminal, b"\x03")

    def signal_group(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    async def ended(self, timeout_s: float = WAIT_S) -> int:
        """The exit status, once the command ended and all that it said is in `said`."""
        status = await asyncio.to_thread(self.process.wait, timeout_s)
        await self._until_read()
        return status

    async def _until_read(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while not self._is_read():
                await asyncio.sleep(0.01)

    def family(self) -> list[psutil.Process]:
        """Every process that has the command's mark in its environment, whoever its parent is."""
        return [each for each in psutil.process_iter() if self._is_ours(each)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(_MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def named(self, part: str) -> psutil.Process:
        """The one process of the family that has `part` in its command line."""
        found = {each: line for each in self.family() if part in (line := line_of(each))}
        assert len(found) == 1, found
        (process,) = found
        return process

    def ports(self) -> Listening:
        """Where the family listens now."""
        pids = {each.pid for each in self.family()}
        found: Listening = {}
        for each in psutil.net_connections("tcp"):
            if each.pid in pids and each.status == psutil.CONN_LISTEN:
                with contextlib.suppress(FileNotFoundError):  # its process has just ended
                    found[os.readlink(f"/proc/{each.pid}/fd/{each.fd}")] = (each.laddr.ip, each.laddr.port)
        return found

    async def leaves_nothing(self, ports: Listening) -> None:
        """Within the usual time no process, and none of `ports` is listened at by the same socket.

        A server beside it may have the same port by then.
        """
        own = {("127.0.0.1", self.port), ("127.0.0.1", self.grpc_port)}
        try:
            async with asyncio.timeout(WAIT_S):
                while self.family() or not all(map(_can_be_had, own)) or ports.keys() & _listening():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            left = [(each.pid, line_of(each)) for each in self.family()]
            taken = [each for each in own if not _can_be_had(each)]
            taken += [ports[each] for each in ports.keys() & _listening()]
            raise AssertionError(f"left behind: {left}, {taken}") from None

    async def cli(self, *arguments: str) -> tuple[int, str]:
        """Run one of our other commands beside it; its exit status and what it said."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "serve_app.cli",
            *arguments,
            env=self.environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await asyncio.wait_for(process.communicate(), START_S)
        return process.returncode or 0, said.decode()

    async def deploy(self, raw: Raw) -> tuple[int, str]:
        """`serve-app deploy` of another version of the file."""
        self.file.write_text(yaml.safe_dump(raw))
        return await self.cli("deploy", str(self.file))

    def clean_up(self) -> None:
        for each in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self.process.kill()
        self.process.wait()
        self._reader.join(WAIT_S)
        os.close(self._terminal)


@contextmanager
def command(raw: Raw, folder: Path, *flags: str, **environ: str) -> Iterator[Command]:
    """A start of the command, of which the block's end leaves nothing. A failure tells what was said."""
    started = Command(raw, folder, *flags, **environ)
    try:
        yield started
    except BaseException as error:
        error.add_note(f"the command said last:\n{started.said[-_TAIL:]}")
        raise
    finally:
        started.clean_up()


def _name_of(process: psutil.Process) -> str:
    """Its name; "" of one that has just ended."""
    try:
        return process.name()
    except psutil.Error:
        return ""


def line_of(process: psutil.Process) -> str:
    """Its command line; "" of one that has just ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _can_be_had(address: Address) -> bool:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as every server does
        try:
            sock.bind(address)
        except OSError:
            return False
        return True


def _listening() -> set[str]:
    """Every socket that listens, as `/proc/PID/fd` names it."""
    lines = [line.split() for each in _TABLES for line in each.read_text().splitlines()]
    return {f"socket:[{fields[9]}]" for fields in lines if fields[3] == _LISTEN}
