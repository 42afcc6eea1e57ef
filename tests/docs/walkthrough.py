"""A tutorial, done as a reader does it: its files are written, its commands run, its outputs compared.

Blocks of code of a page, in order:

* `sh`: commands, run by one bash in the page's folder. What a block exports stays for the next ones.
* `sh title="Terminal 1"`: a command that stays in the foreground of a terminal of its own: the server.
  A second one means that the reader stopped the first with Ctrl-C.
* any language with `title="name.ext"`: a file of that name.
* `text title="Output"`: what the block before says. `...` stands for text that differs from run to run.

Another block is an error: a tutorial shows nothing that no test has run.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.network import Namespace
from tests.support.ray_cluster import ROOT

READY: Final = "Ctrl-C stops it."
START_S: Final = 240.0
STOP_S: Final = 90.0
COMMAND_S: Final = 200.0
TERMINAL: Final = "Terminal 1"
OUTPUT: Final = "Output"
# `make` must not install again what the tests run with.
_PRELUDE: Final = 'make() { command make -o .venv/.installed "$@"; }\nset -eu -o pipefail\n'
_FENCE: Final = re.compile(r"^```(\w*)([^\n`]*)\n(.*?)^```$", re.M | re.S)
_TITLE: Final = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """A fenced block of code of a page."""

    language: str
    title: str
    text: str
    line: int

    @property
    def is_file(self) -> bool:
        return "." in self.title

    @property
    def is_server(self) -> bool:
        return self.title == TERMINAL

    @property
    def is_output(self) -> bool:
        return self.title == OUTPUT


def blocks_of(page: str) -> list[Block]:
    """All blocks of code of a page. Raises ValueError for one that a test could not run or compare."""
    found = []
    for match in _FENCE.finditer(page):
        title = _TITLE.search(match[2])
        block = Block(match[1], title[1] if title else "", match[3], page.count("\n", 0, match.start()) + 1)
        if not (
            block.is_file or block.is_output or (block.language == "sh" and block.title in ("", TERMINAL))
        ):
            raise ValueError(f"line {block.line}: neither a file, nor a command, nor its output")
        found.append(block)
    if page.count("```") != 2 * len(found):
        raise ValueError("a block of code does not begin and end as others do")
    return found


def same(shown: str, said: str) -> bool:
    """Whether a command said what the page shows; `...` is any text."""
    pattern = ".*?".join(map(re.escape, _trimmed(shown).split("...")))
    return re.fullmatch(pattern, _trimmed(said), re.S) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@dataclass
class Server:
    """A command in the foreground of a terminal of its own."""

    command: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def until_ready(self) -> None:
        end = time.monotonic() + START_S
        while READY not in self.said:
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"{self.command} does not serve:\n{self.said}")
            time.sleep(0.05)

    def ctrl_c(self) -> None:
        if self.process.poll() is not None:
            return
        os.killpg(self.process.pid, signal.SIGINT)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # its guardian ends the rest
            self.process.wait()
            raise AssertionError(f"{self.command} does not stop:\n{self.said}") from None


@dataclass
class Reader:
    """Somebody with a checkout, a shell and a terminal for the server, in a network of their own."""

    network: Namespace
    folder: Path
    server: Server | None = None
    _starts: int = 0
    problems: list[str] = field(default_factory=list)

    def follow(self, page: Path, folder: Path) -> None:
        """Do all that the page says, in `folder`, which becomes a checkout with links.

        A server of the same command that another page left running is this page's too.
        """
        _check_out(folder)
        environment = self._environment(folder)
        said, server_said = "", False
        blocks = blocks_of(page.read_text("utf-8"))
        if not any(block.is_server for block in blocks):
            self.leave()  # what another page started: this one needs the ports itself
        for block in blocks:
            if block.is_file:
                target = folder / block.title
                target.parent.mkdir(parents=True, exist_ok=True)
                target.unlink(missing_ok=True)  # else a link into the checkout
                target.write_text(block.text, "utf-8")
            elif block.is_server:
                self._serve(block.text, folder, environment)
                server_said = True
            elif block.is_output:
                shown = block.text.strip()
                right = same(f"...{shown}...", self._server_said()) if server_said else same(shown, said)
                if not right:
                    got = self._server_said() if server_said else said
                    self.problems.append(
                        f"{page.name}:{block.line} shows\n{shown}\nbut the command says\n{got}"
                    )
            else:
                status, said = self._run(block.text, folder, environment)
                server_said = False
                if status:
                    raise AssertionError(
                        f"{page.name}:{block.line} ends with {status}:\n{said}" + self._server_said()
                    )
        if self.problems:
            raise AssertionError("\n\n".join(self.problems))

    def leave(self) -> None:
        """Stop what serves."""
        if self.server is not None:
            server, self.server = self.server, None
            server.ctrl_c()

    def _environment(self, folder: Path) -> dict[str, str]:
        own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        return own | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XDG_STATE_HOME": str(folder / "state"),  # usage of this page alone
            "COLUMNS": "100",
        }

    def _serve(self, command: str, folder: Path, environment: dict[str, str]) -> None:
        shared = "make serve" in command  # of no file that the page has written
        if self.server is not None and shared and self.server.command == command:
            return
        self.leave()
        self._starts += 1
        log = self.folder / f"server-{self._starts}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                self.network.command("bash", "-c", _PRELUDE + command),
                cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        self.server = Server(command, process, log)
        self.server.until_ready()

    def _server_said(self) -> str:
        return self.server.said if self.server is not None else ""

    def _run(self, text: str, folder: Path, environment: dict[str, str]) -> tuple[int, str]:
        exports = folder / ".exports"
        exports.touch()
        script = f"{_PRELUDE}. {exports}\n{text}\nexport -p > {exports}\n"
        done = subprocess.run(
            self.network.command("bash", "-c", script),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        return done.returncode, done.stdout


def _check_out(folder: Path) -> None:
    """A folder with all of the repository, as links: what a tutorial writes stays in it."""
    folder.mkdir(parents=True)
    for entry in ROOT.iterdir():
        if entry.name not in {".git", "build"}:
            (folder / entry.name).symlink_to(entry)


@contextmanager
def reader(network: Namespace, folder: Path) -> Iterator[Reader]:
    """A reader whose server is stopped at the end."""
    one = Reader(network, folder)
    try:
        yield one
    finally:
        one.leave()
