"""The build of the kernels: sources become a shared library, once on each machine.

The library is kept in a folder that only its owner may enter. Its name is the hash of the sources, the
compiler, the flags and the processor, so a stale library is never loaded. The module does not depend on the
functions, and imports only the standard library: `make` runs it as a script, to compile the sources while the
packages are still being installed.
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
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

SOURCES: Final = Path(__file__).parent / "src"
FLAGS: Final = (
    *("-O3", "-pthread", "-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden"),
    *("-Wno-psabi", "-Wno-unknown-pragmas"),
)
HERE: Final = "-march=native"  # unless more flags name another processor
# Variable of the environment with more flags for the compiler, such as a sanitizer.
MORE_FLAGS: Final = "SERVE_APP_KERNELS_FLAGS"
# A build takes a minute of one core, for which many processes may compete while all models start at once.
COMPILE_TIMEOUT_S: Final = 1200


class BuildError(Exception):
    """The library cannot be built: there is no compiler or no private folder, or the compiler failed."""


def library(layout: str) -> Path:
    """The path of the compiled kernels, which are built first if necessary. Raises BuildError.

    `layout`: C++ that is compiled with the kernels (see layout.py).
    """
    compiler = command()
    with _build_errors():
        folder = _own_folder(compiler)
        path = folder / f"{hashlib.sha256(layout.encode()).hexdigest()[:16]}.so"
        if path.exists():  # then the folder may be read-only, as in an image
            return path
        with _lock(folder):
            if not path.exists():
                objects = compile_objects(compiler, folder)
                link(compiler, objects, layout, path)
                for each in objects:
                    each.unlink()
        return path


def compile_early() -> None:
    """Compile in advance what `library` links later, unless that library exists. Raises BuildError."""
    compiler = command()
    with _build_errors():
        folder = _own_folder(compiler)
        with _lock(folder):
            if not any(folder.glob("*.so")):
                compile_objects(compiler, folder)


def cache_folder() -> Path:
    """The folder of the libraries: serve_app/kernels below `XDG_CACHE_HOME` or `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "serve_app" / "kernels"


def cpu_flags() -> frozenset[str]:
    """The features of the processor, by their Linux names, such as `avx512f`; empty if unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


@contextmanager
def _build_errors() -> Iterator[None]:
    """Turns errors of the system and of the compiler's process into a BuildError."""
    try:
        yield
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(str(error)) from error


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Inside the context, no other process builds in `folder`: a second replica waits and uses the first
    one's library."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _own_folder(compiler: Sequence[str]) -> Path:
    """The folder of the objects and the library.

    It is closed to other users, since anyone who can write to it can run code in this process.
    """
    base = cache_folder()
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = base.stat()
    if status.st_uid != os.geteuid():
        raise BuildError(f"{base} belongs to another user")
    if stat.S_IMODE(status.st_mode) & 0o077:
        base.chmod(0o700)
    folder = base / _key(compiler)
    folder.mkdir(exist_ok=True)
    return folder


def _key(compiler: Sequence[str]) -> str:
    """The hash of everything that determines the content of the objects."""
    version = subprocess.run([compiler[0], "--version"], capture_output=True, check=True, timeout=30).stdout
    digest = hashlib.sha256(version)
    for part in (*compiler, *sorted(cpu_flags())):
        digest.update(part.encode() + b"\0")
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def command() -> tuple[str, ...]:
    """The compiler (CXX, if set), its flags, and the flags from the environment. Raises BuildError."""
    named = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if named is None:
        raise BuildError("no C++ compiler found: install g++ or clang")
    return (*shlex.split(named), *flags(shlex.split(os.environ.get(MORE_FLAGS, ""))))


def flags(more: Sequence[str] = ()) -> tuple[str, ...]:
    """The flags that build a library for this processor, or for the processor that `more` names."""
    here = () if any(flag.startswith(("-march", "-mcpu", "-target")) for flag in more) else (HERE,)
    return (*FLAGS, *here, *more)


def compile_objects(compiler: Sequence[str], folder: Path) -> list[Path]:
    """Compile, in parallel, every source that has no object in `folder` yet. Raises BuildError.

    `compiler`: the command with its flags.
    """
    objects = {folder / f"{source.stem}.o": source for source in sorted(SOURCES.glob("*.cpp"))}
    missing = [path for path in objects if not path.exists()]
    if not missing:
        return list(objects)
    log.info("building the CPU kernels with %s (once on this machine)", compiler[0])
    began = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda path: _compile([*compiler, "-c", str(objects[path])], path), missing))
    log.info("built the CPU kernels in %.0f s", time.monotonic() - began)
    return list(objects)


def link(compiler: Sequence[str], objects: Sequence[Path], layout: str, path: Path) -> None:
    """Link the library of `objects` at `path`, if `layout` compiles. Raises BuildError."""
    with tempfile.NamedTemporaryFile("w", suffix=".cpp", dir=path.parent) as source:
        source.write(layout)
        source.flush()
        _compile([*compiler, f"-I{SOURCES}", *map(str, objects), source.name], path)


def _compile(command: Sequence[str], path: Path) -> None:
    """Run the compiler; its output appears at `path` completely or not at all. Raises BuildError."""
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        target = Path(scratch) / path.name
        done = subprocess.run(
            [*command, "-o", str(target)], capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S
        )
        if done.returncode != 0:
            raise BuildError(f"{command[0]} failed: {done.stderr.strip()[-2000:]}")
        target.rename(path)


def main() -> None:
    """Compile the objects; if that is impossible, say why."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        compile_early()
    except BuildError as error:
        sys.exit(f"note: the CPU kernels are not built, and a CPU is slower without them: {error}")


if __name__ == "__main__":
    main()
