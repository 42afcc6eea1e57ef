"""The compiler keeps fetches of memory, though it takes a function of nothing else for one without effect."""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess

import pytest

from serve_app.engine.kernels import build

COMPILER = shlex.split(os.environ.get("CXX") or shutil.which("g++") or "")
pytestmark = pytest.mark.skipif(
    not COMPILER or platform.machine() != "x86_64", reason="looks for instructions of x86-64"
)
FETCH = re.compile(r"^\s+prefetch", re.MULTILINE)


def functions(source: str) -> dict[str, str]:
    """The assembly of each function that is kept, by its mangled name."""
    flags = [flag for flag in build.flags() if flag != "-shared"]
    made = subprocess.run(
        [*COMPILER, *flags, "-S", "-o", "-", str(build.SOURCES / source)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stdout
    found = re.split(r"^(_Z\w+):$", made, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def test_decodes_fetch_keys_and_values_before_they_read_them() -> None:
    few = {name: text for name, text in functions("attention.cpp").items() if "run_part_of_few" in name}
    assert few
    for way in ("InFloats", "InPairs", "AsTiles"):
        of_way = [text for name, text in few.items() if way in name]
        assert of_way, way
        # Of keys, and of values: several for each number of rows.
        assert sum(len(FETCH.findall(text)) for text in of_way) > 24, way


def test_keys_are_fetched_before_they_are_written() -> None:
    assert FETCH.search("".join(functions("rotary.cpp").values()))
