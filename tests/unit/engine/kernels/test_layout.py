"""A library whose structures, constants or functions differ from Python's does not compile."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from serve_app.engine import kernels
from serve_app.engine.kernels import build, layout, native
from serve_app.engine.kernels.exports import EXPORTS
from serve_app.engine.kernels.structs import FLOAT, INT, LONG, POINTER, STRUCTS, StepStruct

COMPILER = shutil.which("g++") or shutil.which("clang++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")


def complaint(tmp_path: Path, text: str | None = None) -> str:
    """What the compiler says of the assertions; empty if they hold."""
    assert COMPILER is not None
    source = tmp_path / "layout.cpp"
    source.write_text(layout.assertions() if text is None else text)
    command = [COMPILER, "-std=c++17", "-fsyntax-only", "-Wno-psabi", f"-I{build.SOURCES}", str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_structures_constants_and_functions_agree_with_the_headers(tmp_path: Path) -> None:
    assert complaint(tmp_path) == ""


def swapped(struct: type[ctypes.Structure]) -> list[tuple[str, type]]:
    first, second, *others = struct._fields_
    return [second, first, *others]  # type: ignore[list-item]


def retyped(struct: type[ctypes.Structure]) -> list[tuple[str, type]]:
    return [*struct._fields_[:-1], (struct._fields_[-1][0], INT)]  # type: ignore[list-item]


def shortened(struct: type[ctypes.Structure]) -> list[tuple[str, type]]:
    return list(struct._fields_[:-1])  # type: ignore[arg-type]


def extended(struct: type[ctypes.Structure]) -> list[tuple[str, type]]:
    return [*struct._fields_, ("another", FLOAT)]  # type: ignore[list-item]


@pytest.mark.parametrize(
    "change", [swapped, retyped, shortened, extended], ids=lambda change: change.__name__
)
def test_structures_that_differ_do_not_compile(
    change: Callable[[type[ctypes.Structure]], list[tuple[str, type]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = [type(s.__name__, (ctypes.Structure,), {"_fields_": change(s)}) for s in STRUCTS]
    monkeypatch.setattr(layout, "STRUCTS", others)
    said = complaint(tmp_path)
    for struct in STRUCTS:
        name = struct.__name__.removesuffix("Struct")
        assert re.search(rf"\b{name}::|size of {name} differs|{name}. decomposes into", said), name


def test_a_constant_or_a_function_that_differs_does_not_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "LANES", 32)
    changed = {
        "gated": (None, (POINTER, POINTER, LONG, LONG, INT)),
        "product_rank": (INT, (INT,)),
        "tasks_taken_over": (INT, ()),
        "add_norm": EXPORTS["add_norm"],
    }
    monkeypatch.setattr(layout, "EXPORTS", changed)
    said = complaint(tmp_path)
    wrong = re.findall(r'"?(\w+) differs between', said)
    assert {"LANES", "gated", "product_rank", "tasks_taken_over"} <= set(wrong)
    assert "add_norm" not in wrong


def test_a_library_is_not_built_from_headers_that_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert COMPILER is not None
    monkeypatch.setattr(layout, "LANES", 32)
    with pytest.raises(build.BuildError, match="LANES differs"):
        build.link((COMPILER, *build.flags()), [], layout.assertions(), tmp_path / "kernels.so")


def test_python_knows_every_function_of_the_header() -> None:
    header = (build.SOURCES / "exports.h").read_text(encoding="utf-8")
    code = re.sub(r"//.*", "", header)
    assert set(re.findall(r"\b(\w+)\(", code)) - {"push"} == EXPORTS.keys()


@pytest.mark.skipif(
    native() is None or shutil.which("nm") is None, reason="no library or no nm on this machine"
)
def test_the_library_shows_these_functions_and_no_others() -> None:
    command = ["nm", "-D", "--defined-only", str(kernels.library())]
    symbols = {line.split()[-1] for line in subprocess.check_output(command, text=True).splitlines()}
    assert {name for name in symbols if not name.startswith("_")} == EXPORTS.keys()


def test_a_structure_takes_all_its_fields_and_no_others() -> None:
    fields = dict.fromkeys((name for name, *_ in StepStruct._fields_), 0)
    assert StepStruct(**fields).rows == 0
    for wrong in (fields | {"raws": 1}, {name: 0 for name in fields if name != "rows"}):
        with pytest.raises(TypeError, match=r"r[ao]ws"):
            StepStruct(**wrong)
