"""Two network namespaces with a cable between them: what a server shows to other machines, by asking it.

Needs Linux and the right to make namespaces: root's, or any user's where user namespaces are allowed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import psutil
import pytest

INSIDE: Final = "10.213.0.1"
OUTSIDE: Final = "10.213.0.2"


@dataclass(frozen=True)
class Namespace:
    """A network of its own, held by a process."""

    pid: int
    address: str

    def command(self, *argv: str) -> list[str]:
        """`argv`, run in this network."""
        user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        return ["nsenter", "-t", str(self.pid), *user, "-n", "--", *argv]

    def run(self, *argv: str, timeout: float = 60.0) -> str:
        """What the command prints. Raises CalledProcessError."""
        done = subprocess.run(
            self.command(*argv), check=True, capture_output=True, text=True, timeout=timeout
        )
        return done.stdout

    def processes(self) -> list[psutil.Process]:
        """Those in this network, but for the one that holds it."""
        mine = _network(self.pid)
        found = []
        for pid in psutil.pids():
            if pid != self.pid and _network(pid) == mine:
                with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                    found.append(psutil.Process(pid))
        return found

    def listening(self) -> dict[int, set[str]]:
        """TCP port -> addresses that it is listened on at, in hexadecimal as the kernel has them."""
        found: dict[int, set[str]] = {}
        for name in ("tcp", "tcp6"):
            with open(f"/proc/{self.pid}/net/{name}") as lines:
                for line in list(lines)[1:]:
                    local, state = line.split()[1], line.split()[3]
                    address, port = local.split(":")
                    if state == "0A":
                        found.setdefault(int(port, 16), set()).add(address)
        return found


def _network(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


@contextmanager
def two_networks() -> Iterator[tuple[Namespace, Namespace]]:
    """Inside and outside, that reach each other at `address`. Skips the test where that is not allowed."""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        pytest.skip("util-linux and iproute2 are needed")
    user = [] if os.geteuid() == 0 else ["-U", "-r"]
    holders: list[subprocess.Popen[Any]] = []
    try:
        inside = _hold(holders, ["unshare", *user, "-n"], INSIDE)
        outside = _hold(holders, [*inside.command("unshare", "-n")], OUTSIDE)
        inside.run("ip", "link", "add", "cable0", "type", "veth", "peer", "cable1", "netns", str(outside.pid))
        for each, name in ((inside, "cable0"), (outside, "cable1")):
            each.run("ip", "address", "add", f"{each.address}/24", "dev", name)
            each.run("ip", "link", "set", name, "up")
            each.run("ip", "link", "set", "lo", "up")
        yield inside, outside
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr}")
    finally:
        for holder in holders:
            holder.kill()
            holder.wait()


def _hold(holders: list[subprocess.Popen[Any]], enter: list[str], address: str) -> Namespace:
    holder = subprocess.Popen(
        [*enter, "sh", "-c", "echo; exec sleep 100000"], stdout=subprocess.PIPE, text=True
    )
    holders.append(holder)
    if not holder.stdout or holder.stdout.readline() != "\n":
        pytest.skip("network namespaces are not allowed here")
    return Namespace(holder.pid, address)
