"""The build of the kernels: sources become a shared library, once on each machine.

The library is kept in a folder that only its owner may enter. Its name is the hash of the sources, the
compiler, the flags and the processor, so a stale library is never loaded. The module knows nothing of what
the functions do.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from serve_app.engine.kernels.layout import assertions

log = logging.getLogger(__name__)

SOURCES: Final = Path(__file__).parent / "src"
FLAGS: Final = (
    *("-O3", "-pthread", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden"),
    *("-Wno-psabi", "-Wno-unknown-pragmas"),
)
HERE: Final = "-march=native"  # unless more flags name another processor
# Variable of the environment with more flags for the compiler, such as a sanitizer.
MORE_FLAGS: Final = "SERVE_APP_KERNELS_FLAGS"
# A build takes 25 s of one core, for which many processes may compete while all models start at once.
COMPILE_TIMEOUT_S: Final = 1200


class BuildError(Exception):
    """The library cannot be built: there is no compiler or no private folder, or the compiler failed."""


def library() -> Path:
    """The path of the compiled kernels, which are built if need be. Raises BuildError."""
    compiler = command()
    try:
        folder = _private_folder()
        path = folder / f"{_key(compiler)}.so"
        if not path.exists():
            with (folder / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # a second replica waits for the first one's library
                if not path.exists():
                    compile_library(compiler, path)
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(str(error)) from error
    return path


def cache_folder() -> Path:
    """The folder of the libraries: serve_app/kernels below `XDG_CACHE_HOME` or `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "serve_app" / "kernels"


def cpu_flags() -> frozenset[str]:
    """The features of the processor by Linux's names, such as `avx512f`; empty where they are unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def _private_folder() -> Path:
    """The cache folder, closed to other users: who can write to it can run code in this process."""
    folder = cache_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise BuildError(f"{folder} belongs to another user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        folder.chmod(0o700)
    return folder


def _key(compiler: Sequence[str]) -> str:
    """The hash of everything that decides what the library contains."""
    version = subprocess.run([compiler[0], "--version"], capture_output=True, check=True, timeout=30).stdout
    digest = hashlib.sha256(version)
    for part in (*compiler, *sorted(cpu_flags()), assertions()):
        digest.update(part.encode() + b"\0")
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def command() -> tuple[str, ...]:
    """The compiler, which CXX names, and its flags with those of the environment. Raises BuildError."""
    named = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if named is None:
        raise BuildError("no C++ compiler found")
    return (*shlex.split(named), *flags(shlex.split(os.environ.get(MORE_FLAGS, ""))))


def flags(more: Sequence[str] = ()) -> tuple[str, ...]:
    """The flags that build a library for this processor, or for the processor that `more` names."""
    here = () if any(flag.startswith(("-march", "-mcpu", "-target")) for flag in more) else (HERE,)
    return (*FLAGS, *here, *more)


def compile_library(compiler: Sequence[str], path: Path) -> None:
    """Build the library at `path`, whole or not at all. Raises BuildError.

    `compiler`: the command with its flags.
    """
    log.info("building the CPU kernels with %s (once on this machine)", compiler[0])
    began = time.monotonic()
    sources = sorted(str(source) for source in SOURCES.glob("*.cpp"))
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        target, layout = Path(scratch) / "kernels.so", Path(scratch) / "layout.cpp"
        layout.write_text(assertions())
        done = subprocess.run(
            [*compiler, f"-I{SOURCES}", *sources, str(layout), "-o", str(target)],
            capture_output=True,
            text=True,
            timeout=COMPILE_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise BuildError(f"{compiler[0]} failed: {done.stderr.strip()[-2000:]}")
        target.rename(path)  # at once: nobody sees half a library
    log.info("built the CPU kernels in %.0f s", time.monotonic() - began)
