"""The channel of `serve-app deploy` to a running server: a socket, and a note of its path.

The note is the file `servers/PORT.json` below the user's state folder, and contains the socket's path. Lines
of JSON are sent over the socket: `{"file", "text"}` to the server; back come any number of `{"say"}`, then
one `{"done"}` or `{"error"}`. Only the owner can access the note and the socket.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from serve_app.config import state_dir
from serve_app.config.places import database_url
from serve_app.deployments.launcher.errors import CannotServe
from serve_app.endpoints.rules import SYSTEM_APP

CONNECT_S: Final = 10.0
MAX_TEXT_BYTES: Final = 16 * 2**20  # of a deploy file
_FILE: Final = "sqlite:///"

Deploy = Callable[[str, str, Callable[[str], None]], None]  # file's name, its text, callback for progress


@dataclass(frozen=True)
class Note:
    """Where a running server can be reached."""

    port: int  # of HTTP
    socket: str
    file: str  # its deploy file, for people

    @classmethod
    def path(cls, port: int) -> Path:
        """The path of the note of the server at `port`."""
        return state_dir() / "servers" / f"{port}.json"

    def write(self) -> None:
        """Write the note, for this user alone."""
        path = self.path(self.port)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(asdict(self), file)
        new.replace(path)

    def remove(self) -> None:
        """Remove the note, unless another server has written its own note in its place."""
        if read_note(self.path(self.port)) == self:
            self.path(self.port).unlink(missing_ok=True)


def read_note(path: Path) -> Note | None:
    """The note at `path`; None if there is none that can be read."""
    try:
        return Note(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


class Control:
    """The server's end. One deploy at a time; each runs in a thread of its own."""

    def __init__(self, folder: Path, deploy: Deploy) -> None:
        """`deploy` raises CannotServe."""
        self.path = folder / "control.sock"
        self._deploy = deploy
        self._busy = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, name="control", daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        def tell(**words: Any) -> None:
            with contextlib.suppress(OSError):  # the caller has left; the work goes on
                connection.sendall(json.dumps(words).encode() + b"\n")

        with connection, contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            asked = json.loads(connection.makefile("rb").readline(MAX_TEXT_BYTES))
            file, text = str(asked["file"]), str(asked["text"])
            if not self._busy.acquire(blocking=False):
                tell(error="another deploy is under way; wait for its end")
                return
            try:
                last: dict[str, Any] = self._done(file, text, lambda words: tell(say=words))
            finally:
                self._busy.release()  # before the last line, after which the caller may deploy again
            tell(**last)

    def _done(self, file: str, text: str, say: Callable[[str], None]) -> dict[str, Any]:
        """Deploy; returns the last line to show to the caller."""
        try:
            self._deploy(file, text, say)
        except CannotServe as error:
            return {"error": str(error)}
        except Exception as error:
            return {"error": f"an unexpected error: {type(error).__name__}: {error}"}
        return {"done": True}


def deploy(file: str, text: str, port: int, say: Callable[[str], None]) -> None:
    """Make the server at `port` deploy `text`; returns when all of it runs. Raises CannotServe."""
    with _connected(port) as connection:
        connection.sendall(json.dumps({"file": file, "text": text}).encode() + b"\n")
        for line in connection.makefile("rb"):
            answer = json.loads(line)
            if "error" in answer:
                raise CannotServe(answer["error"])
            if "done" in answer:
                return
            say(answer["say"])
    raise CannotServe("the server stopped before it was done")


def _connected(port: int) -> socket.socket:
    path = Note.path(port)
    if (note := read_note(path)) is not None:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(CONNECT_S)
            sock.connect(note.socket)
            sock.settimeout(None)
            return sock
        except OSError:
            sock.close()
    running = "; ".join(f"{each.port} ({each.file})" for each in servers())
    raise CannotServe(
        f"no server that you started runs at port {port}, which http_options.port of the file says. "
        + (f"These run: {running}." if running else "`serve-app serve FILE` starts one.")
    )


def servers() -> list[Note]:
    """The running servers of this user, by their ports."""
    found = (read_note(each) for each in sorted(Note.path(0).parent.glob("*.json")))
    return [note for note in found if note is not None and _lives(note)]


def database(config: dict[str, Any], environ: Mapping[str, str] = os.environ) -> str:
    """A digest that identifies the database of a deploy file's control plane; empty if it has none."""
    for app in config["applications"]:
        args = app.get("args") or {}
        settings = args.get("control") or {}
        if app.get("name") == SYSTEM_APP and settings.get("enabled") is not False:
            where = database_url(settings.get("database_url"), args.get("usage_dir"), environ)
            return hashlib.sha256(_place(where).encode()).hexdigest()
    return ""


def _place(url: str) -> str:
    """An identifier of the database at `url`. A file is identified by the inode of its folder, since the same
    path may mean different files in different containers."""
    if not url.startswith(_FILE):
        return url
    file = Path(url.removeprefix(_FILE))
    with contextlib.suppress(OSError):  # the control plane makes the folder
        folder = file.parent.stat()
        return f"{folder.st_dev}:{folder.st_ino}/{file.name}"
    return url


def _lives(note: Note) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(note.socket)
        except OSError:
            return False
        return True
