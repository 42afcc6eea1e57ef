"""Claims of things that only one server on a machine may use, such as a port or a database.

A claim is a Unix socket with an abstract name. The kernel gives each name to one process, keeps the names of
each network namespace separate (as with ports), and frees a name when its process ends for any reason. Does
not depend on deploy files.
"""

from __future__ import annotations

import errno
import socket
import struct
from typing import Final

import psutil

from serve_app.deployments.launcher.errors import CannotServe

_PEER: Final = struct.Struct("3i")  # process, user and group of the listener
_LOOK_S: Final = 1.0  # a full queue of callers makes others wait


class Claims:
    """The claims of this process."""

    def __init__(self) -> None:
        self._held: dict[str, socket.socket] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._held

    def tries(self, key: str) -> bool:
        """Claim `key`, which is not secret. Returns whether this process has the claim."""
        if key in self._held:
            return True
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.bind(_address(key))
            sock.listen()
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        self._held[key] = sock
        return True

    def take(self, key: str, name: str, advice: str) -> None:
        """Claim `key`, which messages call `name`. Raises CannotServe, with `advice`, if another has it."""
        if not self.tries(key):
            raise CannotServe(f"{name} belongs to {_holder(key)}. {advice}")


def _address(key: str) -> str:
    return f"\0serve-app {key}"


def _holder(key: str) -> str:
    """A description, for people, of the process that claimed `key`."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(_LOOK_S)
        try:
            sock.connect(_address(key))
            pid, *_ = _PEER.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            process = psutil.Process(pid)
            words = process.cmdline()
            # The launcher above it is the one that signals end.
            top = [each for each in (process, *process.parents()) if each.cmdline() == words][-1]
        except (OSError, psutil.Error):  # it has just ended, or is another user's
            return "another server"
    return f"another server (process {top.pid}: {' '.join(words)})"
