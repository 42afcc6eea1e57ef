"""What the harness must know of one server: how it is installed, what it serves, how it is started."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.load import Body

BF16: Final = "bf16"
INT8: Final = "int8"
INT4: Final = "int4"
# Bytes of one weight, with the scales of its group where formats have groups.
WEIGHT_BYTES: Final = {BF16: 2.0, INT8: 1.0, INT4: 0.5625}
TORCH: Final = "torch==2.13.0"


@dataclass(frozen=True)
class Command:
    """How a server is started."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where a server listens and what it may use."""

    port: int
    threads: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Peer(ABC):
    """One server. `home` is a folder of its own, which `install` fills."""

    name: ClassVar[str]
    requirements: ClassVar[Sequence[str]] = ()  # of its virtual environment, with versions
    formats: ClassVar[Mapping[str, str]]  # from a precision to the server's own name for it
    ready_path: ClassVar[str] = "/health"
    ready_timeout_s: ClassVar[float] = 300.0
    notes: ClassVar[str]  # settings and obstacles, for the table

    def __init__(self, home: Path) -> None:
        self.home = home

    @property
    def python(self) -> Path:
        return self.home / "venv" / "bin" / "python"

    def missing(self) -> str:
        """Why the server cannot be started here; empty: it can."""
        if (self.home / "installed").exists():
            return ""
        failure = self.home / "failure.txt"
        return failure.read_text("utf-8").strip() if failure.exists() else "not installed"

    def install(self) -> None:
        """Fill `home`, from package registries and source alone."""
        self.make_environment()

    def make_environment(self) -> None:
        """A virtual environment with `requirements`; torch first, whose CPU build pip is to find."""
        if not self.python.exists():
            call([sys.executable, "-m", "venv", str(self.home / "venv")])
        for wanted in ([TORCH], self.requirements):
            call([str(self.python), "-m", "pip", "install", "--quiet", *wanted])

    def prepare(self, model: Path, precision: str) -> Path:
        """What the server loads: the model itself, or a conversion of it that is kept in `home`."""
        return model

    @abstractmethod
    def command(self, served: Path, precision: str, place: Place) -> Command: ...

    def model_name(self, served: Path) -> str:
        """The `model` of requests."""
        return served.name

    def adapt(self, body: Body, tokenizer: Path) -> Body:
        """A body of the load generator in the form that the server understands."""
        return body

    def label(self, precision: str) -> str:
        return f"{self.name} {self.formats[precision]}"


def call(argv: Sequence[str], **environment: str) -> None:
    """Run a command at a low priority; its output is the caller's."""
    nice = ["nice", "-n", "19"] if shutil.which("nice") else []
    print("$", " ".join(map(str, argv)), flush=True)
    subprocess.run([*nice, *argv], check=True, env={**os.environ, **environment})
