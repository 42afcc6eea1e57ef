"""`make kernels-check`: the native kernels for every kind of processor and under every checker.

Each variant is compiled; then portable.cpp and the tests of the kernels run with it. A variant that this
machine cannot run is only compiled, and the table says so: a processor of another level, or NEON without
`qemu-aarch64`. The exit status is 1 if anything failed.

    python -m tests.support.kernels_matrix [VARIANT ...] [--no-tests]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from serve_app.engine.kernels import build
from tests.support.emulated_tiles import FLAGS as EMULATED_TILES

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "build" / "kernels-check"
PORTABLE: Final = ROOT / "tests/unit/engine/kernels/portable.cpp"
TESTS: Final = (
    "tests/unit/engine/kernels/test_selfcheck.py",
    "tests/unit/engine/kernels/test_kernels.py",
    "tests/unit/engine/kernels/test_compact.py",
    "tests/unit/engine/kernels/test_grouped.py",
    "tests/unit/engine/cpu",
    "tests/unit/engine/experts",
    "tests/unit/engine/state",
    "tests/unit/engine/weights",
    "tests/unit/engine/attention/test_cpu.py",
    "tests/unit/engine/sampling/test_topk.py",
)
# --capture=sys: what a checker writes before it ends the process must come through.
PYTEST: Final = ("-x", "--capture=sys", "-p", "no:cacheprovider", "-m", "not full", "-o", "timeout=1200")
TIMEOUT_S: Final = 3600
QEMU: Final = "qemu-aarch64"
CROSS: Final = "aarch64-linux-gnu-g++"
LIBRARY: Final = "from serve_app.engine.kernels import library; print(library())"
IN_USE: Final = "from serve_app.engine.kernels import native; assert native(); print('library in use')"

# Flags of /proc/cpuinfo that tell whether a processor has a level.
V2: Final = frozenset({"sse4_2", "ssse3", "popcnt", "cx16"})
V3: Final = V2 | {"avx2", "bmi1", "bmi2", "fma", "f16c", "movbe", "abm"}
V4: Final = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
AMX: Final = V4 | {"avx512_bf16", "avx512_fp16", "amx_bf16", "amx_tile"}
# A finding of a checker ends the run. Line numbers and quick builds matter more than speed.
CHECKED: Final = ("-O1", "-g", "-fno-omit-frame-pointer")


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compile the kernels, and how to run them."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str] = frozenset()  # flags that a processor must have to run it
    compiler: str = "g++"
    runner: tuple[str, ...] = ()  # before the command
    runtime: tuple[str, ...] = ()  # libraries that Python must load before all others
    environment: tuple[tuple[str, str], ...] = ()
    in_python: bool = True  # run the tests too, not portable.cpp alone
    plugin: str | None = None  # of pytest; its emulate() makes the library usable

    def environ(self) -> dict[str, str]:
        """The environment in which the variant's library is built and found again."""
        return os.environ | {
            "CXX": self.compiler,
            build.MORE_FLAGS: " ".join(self.flags),
            "XDG_CACHE_HOME": str(FOLDER / self.name),  # builds in one folder wait for each other
            "PYTHONPATH": str(ROOT),
            **dict(self.environment),
        }


def variants() -> Iterator[Variant]:
    """The variants that can be compiled on this machine."""
    if os.uname().machine == "x86_64":
        for level, needs in (("", frozenset()), ("-v2", V2), ("-v3", V3), ("-v4", V4)):
            yield Variant(f"x86-64{level}", (f"-march=x86-64{level}",), needs)
        yield Variant("amx", ("-march=sapphirerapids",), AMX)
        yield Variant("amx-emulated", EMULATED_TILES, plugin="tests.support.emulated_tiles")
    yield Variant("native", ())
    yield Variant("undefined", (*CHECKED, "-fsanitize=undefined", "-fno-sanitize-recover=all"))
    yield Variant(
        "address",
        (*CHECKED, "-fsanitize=address"),
        runtime=("libasan.so", "libstdc++.so"),  # the second, as torch throws exceptions and Python has none
        environment=(("ASAN_OPTIONS", "detect_leaks=0"),),  # Python keeps much until its end
    )
    yield Variant(
        "thread",
        (*CHECKED, "-fsanitize=thread"),
        runner=("setarch", "-R"),  # its memory map does not bear every random address
        environment=(("TSAN_OPTIONS", f"exitcode=66:suppressions={PORTABLE.parent / 'tsan.txt'}"),),
        in_python=False,  # torch's own threads are not compiled for it
    )
    if shutil.which(CROSS):
        yield Variant(
            "neon",
            ("-march=armv8-a",),
            frozenset({"asimd"}),
            CROSS,
            (QEMU, "-L", "/usr/aarch64-linux-gnu"),
            in_python=False,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    known = {variant.name: variant for variant in variants()}
    parser.add_argument("variants", nargs="*", choices=[[], *known], default=[], metavar="VARIANT")
    parser.add_argument("--no-tests", action="store_true", help="run portable.cpp alone")
    options = parser.parse_args()
    chosen = [known[name] for name in options.variants] or list(known.values())
    FOLDER.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = list(pool.map(_compile, chosen))
    print("| variant | compiled | portable.cpp | tests |\n|---|---|---|---|")
    failed = False
    for variant, program in zip(chosen, compiled, strict=True):
        results = ["yes" if program.exists() else f"FAILED: see {variant.name}-compile.log", "", ""]
        if program.exists():
            results[1] = _run(variant, [str(program)])
        if results[1] == "passed" and variant.in_python and not options.no_tests:
            results[2] = _run_tests(variant)
        print(f"| {variant.name} | {' | '.join(results)} |", flush=True)
        failed |= any("FAILED" in result for result in results)
    if CROSS not in {variant.compiler for variant in known.values()}:
        print(f"neon: not compiled, as there is no {CROSS} (apt-get install g++-aarch64-linux-gnu qemu-user)")
    return int(failed)


def _compile(variant: Variant) -> Path:
    """Compile the library and portable.cpp; the path of the program, which is missing if that failed."""
    program = FOLDER / f"portable-{variant.name}"
    program.unlink(missing_ok=True)
    made = _do([sys.executable, "-c", LIBRARY], variant.environ())
    if made.returncode:
        _keep(variant, "compile", made)
        return program
    library = Path(made.stdout.strip())
    flags = [flag for flag in build.flags(variant.flags) if flag != "-shared"]
    command = [variant.compiler, *flags, f"-I{build.SOURCES}", str(PORTABLE), str(library)]
    linked = _do([*command, f"-Wl,-rpath,{library.parent}", "-o", str(program)], variant.environ())
    if linked.returncode:
        _keep(variant, "compile", linked)
    return program


def _run_tests(variant: Variant) -> str:
    """The result of the tests, which would skip most of their work if the library were not in use."""
    plugin = ("-p", variant.plugin) if variant.plugin else ()
    first = f"from {variant.plugin} import emulate; emulate(); " if variant.plugin else ""
    used = _run(variant, [sys.executable, "-c", first + IN_USE])
    return (
        _run(variant, [sys.executable, "-m", "pytest", *plugin, *PYTEST, *TESTS])
        if used == "passed"
        else used
    )


def _run(variant: Variant, command: Sequence[str]) -> str:
    """The result of `command`, a program or the tests, as a cell of the table."""
    emulated, here = variant.runner[:1] == (QEMU,), variant.needs <= build.cpu_flags()
    if not here and not (emulated and shutil.which(QEMU)):
        return "not run: another processor"
    runner = () if emulated and here else variant.runner
    environment = variant.environ()
    if variant.runtime and command[0] == sys.executable:
        found = (_do(["g++", f"-print-file-name={name}"], environment) for name in variant.runtime)
        environment["LD_PRELOAD"] = " ".join(done.stdout.strip() for done in found)
    began = time.monotonic()
    done = _do([*runner, *command], environment)
    if done.returncode:
        return f"FAILED: {_keep(variant, Path(command[0]).name, done)}"
    print(
        f"{variant.name}: {done.stdout.strip().splitlines()[-1]} ({time.monotonic() - began:.0f} s)",
        file=sys.stderr,
    )
    return "passed" + (f" in {QEMU}" if emulated and not here else "")


def _do(command: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command. One that hangs is killed after TIMEOUT_S and has failed."""
    limited = ["timeout", "--signal=KILL", str(TIMEOUT_S), *command]
    return subprocess.run(limited, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


def _keep(variant: Variant, what: str, done: subprocess.CompletedProcess[str]) -> Path:
    """Write the output of a command that failed to a file, and return its path."""
    path = FOLDER / f"{variant.name}-{what}.log"
    path.write_text(done.stdout + done.stderr)
    return path.relative_to(ROOT)


if __name__ == "__main__":
    sys.exit(main())
