"""What `make kernels-check` names exists, and compiles; what it runs on this processor without Python passes.

The command itself is too slow for these tests to run.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from serve_app.engine import kernels
from serve_app.engine.kernels import build
from tests.support import kernels_matrix as matrix

LEVELS = [variant for variant in matrix.variants() if variant.flags and variant.flags[0].startswith("-march")]
COMPILERS = [name for name in ("clang++", "g++-11") if shutil.which(name)]


def check_sources(compiler: str, flags: tuple[str, ...]) -> None:
    """Have a compiler read the sources, none of which it translates."""
    command = (compiler, *build.flags(flags), "-fsyntax-only")
    sources = map(str, sorted(build.SOURCES.glob("*.cpp")))
    done = subprocess.run([*command, *sources], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


def test_the_files_that_every_variant_runs_exist() -> None:
    paths = (*matrix.TESTS, matrix.PORTABLE.relative_to(matrix.ROOT))
    assert [path for path in paths if not (matrix.ROOT / path).exists()] == []


def test_every_variant_has_a_name_of_its_own_and_another_way_to_compile() -> None:
    variants = list(matrix.variants())
    assert len({variant.name for variant in variants}) == len(variants)
    assert len({(variant.compiler, variant.flags) for variant in variants}) == len(variants)


@pytest.mark.full
@pytest.mark.parametrize("variant", LEVELS, ids=lambda variant: variant.name)
def test_a_compiler_takes_the_sources_for_every_processor(variant: matrix.Variant) -> None:
    if shutil.which(variant.compiler) is None:
        pytest.skip(f"needs {variant.compiler}")
    check_sources(variant.compiler, variant.flags)


@pytest.mark.full
@pytest.mark.parametrize("variant", LEVELS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_other_compilers_take_them_too(compiler: str, variant: matrix.Variant) -> None:
    if variant.compiler != "g++":
        pytest.skip("another compiler's processor")
    check_sources(compiler, variant.flags)


@pytest.mark.full
def test_the_program_without_python_finds_no_wrong_result_on_this_processor(tmp_path: Path) -> None:
    if (compiler := shutil.which("g++")) is None:
        pytest.skip("needs g++")
    library, program = kernels.library(), tmp_path / "portable"
    flags = [flag for flag in build.flags(()) if flag not in ("-shared", "-O3")]
    command = [compiler, *flags, f"-I{build.SOURCES}", str(matrix.PORTABLE), str(library)]
    command += [f"-Wl,-rpath,{library.parent}", "-o", str(program)]
    for step in (command, [str(program)]):
        done = subprocess.run(step, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
