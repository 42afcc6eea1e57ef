"""The verdict of a trial, which runs in a separate process; the verdict is remembered for this machine.

A faulty kernel may end the process, or make CUDA unusable for the rest of the process. So no kernel runs in
this process. The trial's process also compiles the kernels, so they are in Triton's cache when the model is
served. A verdict without a fault is remembered; after a fault, the trial is repeated at the next start.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import torch

from serve_app.engine.cuda.trial.question import Question

ENGINE: Final = Path(__file__).parents[2]
# Whose source decides what runs on the GPU: a change of it asks for a new trial.
SOURCES: Final = (
    *("attention/triton", "attention/block_pools.py", "cuda", "experts", "fused", "state", "weights"),
)
COMMAND: Final = (sys.executable, "-m", "serve_app.engine.cuda.trial")
DRIVER: Final = Path("/proc/driver/nvidia/version")
TIMEOUT_S: Final = 300  # kernels are compiled in some of it
TOLD: Final = 300  # characters of a dead process's last output


@dataclass(frozen=True, slots=True)
class Verdict:
    """The fault that a trial found, as a sentence; None if the trial found none."""

    fault: str | None

    def to_json(self) -> bytes:
        return msgspec.json.encode(self)


def fault_of(question: Question, folder: Path | None = None, command: Sequence[str] = COMMAND) -> str | None:
    """The reason why the kernels must not be used for `question`; None if a trial found no fault.

    Waits for a trial of the same question that is already running. `folder` keeps verdicts; None: the user's
    cache.
    """
    passed = (folder or cache_folder()) / f"{_key(question)}.passed"
    with _locked(passed):
        with contextlib.suppress(OSError):  # a folder of another user
            if passed.exists():
                return None
        fault = _ask(question, command)
        if fault is None:
            with contextlib.suppress(OSError):  # nowhere to remember it
                passed.touch()
        return fault


def cache_folder() -> Path:
    """The folder of verdicts: serve_app/trials below `XDG_CACHE_HOME` or `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "serve_app" / "trials"


@contextlib.contextmanager
def _locked(passed: Path) -> Iterator[None]:
    """Allow one trial of a question at a time on this machine; if no folder is writable, any number."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            passed.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = stack.enter_context(passed.with_suffix(".lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _ask(question: Question, command: Sequence[str]) -> str | None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            command, input=question.to_json(), capture_output=True, timeout=TIMEOUT_S, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"the trial took more than {TIMEOUT_S} s"
    except OSError as error:
        return f"the trial could not be started: {error}"
    lines = done.stdout.splitlines()
    try:
        return msgspec.json.decode(lines[-1] if lines else b"", type=Verdict).fault
    except msgspec.DecodeError:
        said = done.stderr.decode(errors="replace").strip()[-TOLD:]
        return f"the trial's process ended with status {done.returncode}: {said}"


def _key(question: Question) -> str:
    """The hash of all that a verdict depends on."""
    digest = hashlib.sha256(question.to_json())
    device = torch.device(question.device)
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        digest.update(f"{found.name} {found.major}.{found.minor} {torch.version.cuda}".encode())
        with contextlib.suppress(OSError):  # there is none below Windows
            digest.update(DRIVER.read_bytes())
    for package in ("torch", "transformers", "triton"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            digest.update(f"{package} {importlib.metadata.version(package)}".encode())
    for source in _sources():
        digest.update(source.read_bytes())
    return digest.hexdigest()[:32]


def _sources() -> Iterator[Path]:
    for name in SOURCES:
        path = ENGINE / name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]
