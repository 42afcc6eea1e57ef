"""Sockets by which a launcher makes its gateways finish: one for each gateway, in the launcher's folder.

    drain   admit nothing from now on -> the number of answers under way
    flush   write the usage journal to the disk, once nothing is under way -> 0

A command and its reply are one line each. The sockets need neither Ray nor Serve, either of which may have
failed, and they also reach a gateway that Serve is replacing. Only the owner can access the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

FOLDER: Final = "SERVE_APP_LAUNCHER_DIR"  # environment variable; not set without our launcher
DRAIN: Final = "drain"
FLUSH: Final = "flush"
_PATTERN: Final = "gateway-*.sock"

Command = Callable[[], Awaitable[int]]


class DrainSocket:
    """The gateway's end of the socket."""

    def __init__(self, server: asyncio.Server, path: Path) -> None:
        self._server = server
        self._path = path

    @classmethod
    async def open(
        cls, commands: Mapping[str, Command], environ: Mapping[str, str] = os.environ
    ) -> DrainSocket | None:
        """Listen in the launcher's folder; None if no launcher made one."""
        folder = environ.get(FOLDER)
        if not folder:
            return None
        path = Path(folder) / _PATTERN.replace("*", str(os.getpid()))

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer), contextlib.suppress(OSError):
                while line := await reader.readline():
                    command = commands.get(line.decode("utf-8", "replace").strip())
                    writer.write(f"{await command()}\n".encode() if command else b"?\n")
                    await writer.drain()

        try:
            path.unlink(missing_ok=True)  # of a process that had this id
            return cls(await asyncio.start_unix_server(answer, path), path)
        except OSError as error:
            logger.error("the launcher cannot tell this gateway to finish: %s", error)
            return None

    async def close(self) -> None:
        """Listen no more."""
        self._server.close()
        self._path.unlink(missing_ok=True)


def ask(folder: Path, command: str, timeout_s: float) -> int:
    """The sum of the replies of all gateways of `folder`. A gateway that is gone counts as 0."""
    return sum(_ask(path, command, timeout_s) for path in sorted(folder.glob(_PATTERN)))


def _ask(path: Path, command: str, timeout_s: float) -> int:
    """Raises TimeoutError for a gateway that is alive but does not reply."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(timeout_s)
        try:
            sock.connect(str(path))
            sock.sendall(f"{command}\n".encode())
            return int(sock.makefile().readline() or 0)
        except TimeoutError:
            raise
        except (OSError, ValueError):
            return 0
