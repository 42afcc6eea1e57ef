"""HAProxy's admin socket for Ray: HAProxy's answers, but with the supervisor's process id.

Ray believes that its HAProxy has started once the socket answers with the id of the process that Ray began.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
from pathlib import Path
from typing import Final

TIMEOUT_S: Final = 2.0  # for either side; HAProxy answers within milliseconds
MAX_COMMAND_BYTES: Final = 4_096
_PID: Final = re.compile(rb"^Pid: \d+$", re.MULTILINE)


class Relay:
    """Answers at `path` on behalf of the HAProxy whose own admin socket is `admin`."""

    def __init__(self, path: Path, admin: Path) -> None:
        self._admin = admin
        # Neither the process that listens at `path` until now nor Ray may miss a question.
        fresh = path.with_name(f"relay.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(fresh))
        fresh.chmod(0o600)
        self._listener.listen(16)
        fresh.rename(path)

    def fileno(self) -> int:
        return self._listener.fileno()

    def answer(self) -> None:
        """Answer one question. If HAProxy gives no answer, the connection is closed."""
        with contextlib.suppress(OSError):
            asker, _ = self._listener.accept()
            with asker:
                asker.settimeout(TIMEOUT_S)
                asker.sendall(_PID.sub(b"Pid: %d" % os.getpid(), ask(self._admin, _line(asker))))


def ask(admin: Path, command: bytes) -> bytes:
    """HAProxy's answer to one command. Raises OSError if there is no answer."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(TIMEOUT_S)
        sock.connect(str(admin))
        sock.sendall(command)
        return _all(sock)


def _line(sock: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < MAX_COMMAND_BYTES:
        piece = sock.recv(MAX_COMMAND_BYTES)
        if not piece:
            break
        line += piece
    return line


def _all(sock: socket.socket) -> bytes:
    pieces = []
    while piece := sock.recv(2**16):
        pieces.append(piece)
    return b"".join(pieces)
